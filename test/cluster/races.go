package cluster

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
)

// raceReport begins a report of Go's race detector.
const raceReport = "WARNING: DATA RACE"

// raceLines is how many lines of a report an error quotes.
const raceLines = 40

// dataRaces returns an error with the first report of the race detector in the logs of a
// directory. Programs may be built with it, and one that is killed or restarted has no
// exit status that shows a race.
func dataRaces(dir string) error {
	logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		return err
	}
	for _, path := range logs {
		text, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("looking for data races: %w", err)
		}
		if _, report, found := bytes.Cut(text, []byte(raceReport)); found {
			lines := bytes.SplitN(report, []byte("\n"), raceLines+1)
			return fmt.Errorf("%s has a data race:\n%s%s", filepath.Base(path), raceReport, bytes.Join(lines[:min(len(lines), raceLines)], []byte("\n")))
		}
	}
	return nil
}
