package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDataRaces(t *testing.T) {
	dir := t.TempDir()
	log := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	log("agent.log", "Serving\n")
	if err := dataRaces(dir); err != nil {
		t.Error(err)
	}
	log("controller.log", "Leading\n==================\nWARNING: DATA RACE\nWrite at 0x00c0 by goroutine 7:\n")
	if err := dataRaces(dir); err == nil || !strings.Contains(err.Error(), "controller.log has a data race:\nWARNING: DATA RACE\nWrite at") {
		t.Errorf("%v", err)
	}
}
