package speed

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// What hack/plant.sh plants beside lost connections: tests that pass when they are repeated,
// that are gone by then, and that are skipped.

func TestPlantedFlakes(t *testing.T) {
	flakes, _ := strconv.Atoi(os.Getenv("PLANT_FLAKES")) // none, unless it is a number
	for i := range flakes {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			if firstTime(t, i) {
				t.Error("planted: this is the first time")
			}
		})
	}
}

func TestPlantedVanishes(t *testing.T) {
	if os.Getenv("PLANT_VANISHES") != "" && firstTime(t, 0) {
		t.Run("now", func(t *testing.T) { t.Error("planted: there is no second time") })
	}
}

func TestPlantedSkip(t *testing.T) {
	if os.Getenv("PLANT_SKIP") != "" {
		t.Skip("planted")
	}
}

func firstTime(t *testing.T, number int) bool {
	t.Helper()
	file, err := os.OpenFile(filepath.Join(os.Getenv("PLANT_DIRECTORY"), strconv.Itoa(number)), os.O_CREATE|os.O_EXCL, 0o600)
	if os.IsExist(err) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	return true
}
