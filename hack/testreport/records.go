package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// maxRetried is how many tests of a whole run may pass only on the second attempt.
const maxRetried = 2

// record is the result of a package or program.
type record struct {
	Package string // its path within the repository, or the program's name
	Wall    time.Duration
	CPU     time.Duration
	Tests   int // that ran, with subtests and Ginkgo's specs
	Passed  []string
	Skipped []outcome
	Retried []outcome
	Failed  []outcome

	passed bool // according to go test
}

// outcome is the result of a test that did not simply pass.
type outcome struct {
	Test    string // empty: the package as a whole
	Verdict string
	Printed []string // the test's own lines
}

type records []record

// readRecords reads what appendTo has written, if anything.
func readRecords(path string) (records, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) || path == "" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var rs records
	for decoder := json.NewDecoder(bytes.NewReader(data)); ; {
		var r record
		if err := decoder.Decode(&r); errors.Is(err, io.EOF) {
			return rs, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		rs = append(rs, r)
	}
}

func (rs records) appendTo(path string) error {
	if path == "" {
		return nil
	}
	var lines bytes.Buffer
	for _, r := range rs {
		if err := json.NewEncoder(&lines).Encode(r); err != nil {
			return err
		}
	}
	return appendTo(path, lines.Bytes())
}

func (rs records) retried() int {
	n := 0
	for _, r := range rs {
		n += len(r.Retried)
	}
	return n
}
