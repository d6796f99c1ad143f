package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestClose(t *testing.T) {
	retried := []outcome{{"TestSlow", "failed, then passed. The first time it printed:", []string{"took 3 s, want 2 s"}}}
	skipped := []outcome{{Test: "TestRoot", Verdict: "no such module"}}
	t.Chdir(t.TempDir())
	for _, name := range []string{"test/a", "test/b"} {
		if err := os.MkdirAll(name, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		records  records
		skips    skips
		complete bool
		passed   bool
		lines    []string
	}{
		"all passed": {
			records: records{{Package: "agent", Wall: 1500 * time.Millisecond, CPU: 2 * time.Second, Tests: 7}}, passed: true,
			lines: []string{"agent 1.5 s 2.0 s 7 0 0", "all 10.0 s 2.0 s 7 0 0"},
		},
		"nothing ran": {lines: []string{"FAIL no test ran."}},
		"two retried": {
			records: records{{Package: "agent", Retried: slices.Repeat(retried, 2)}}, passed: true,
			lines: []string{"all 10.0 s 0.0 s 0 0 2", "RETRIED agent TestSlow: failed, then passed. The first time it printed:", "took 3 s, want 2 s"},
		},
		"three retried": {
			records: records{{Package: "agent", Retried: slices.Repeat(retried, 2)}, {Package: "api", Retried: retried}},
			lines:   []string{"FAIL 3 tests passed only when repeated; at most 2 may."},
		},
		"failed": {
			records: records{{Package: "agent", Failed: []outcome{{"TestBad", "failed twice. The first time it printed:", []string{"no"}}}}},
			lines:   []string{"FAIL agent TestBad: failed twice. The first time it printed:", "no"},
		},
		"skipped as listed": {
			records: records{{Package: "agent", Skipped: skipped}}, skips: skips{"agent TestRoot": "not everywhere"}, passed: true,
			lines: []string{"SKIPPED agent TestRoot: no such module"},
		},
		"skipped, and not listed": {
			records: records{{Package: "agent", Skipped: skipped}}, skips: skips{"agent TestOther": "not everywhere"},
			lines: []string{"FAIL may not be skipped: agent TestRoot: no such module"},
		},
		"listed, and passed or not run": {
			records: records{{Package: "test/a", Passed: []string{"TestA"}}}, complete: true, passed: true,
			skips: skips{"test/a TestA": "not everywhere", "test/b TestB": "not everywhere"},
		},
		"listed, and skipped or failed": {
			records:  records{{Package: "test/a", Skipped: skipped, Failed: []outcome{{Test: "TestBad"}}}},
			complete: true,
			skips:    skips{"test/a TestRoot": "not everywhere", "test/a TestBad": "not everywhere"},
			lines:    []string{"FAIL test/a TestBad:"},
		},
		"listed, and not there": {
			records: records{{Package: "test/a", Passed: []string{"TestA"}}}, complete: true,
			skips: skips{"test/a TestGone": "not everywhere"},
			lines: []string{"FAIL is in the list of skips, but not there: test/a TestGone"},
		},
		"listed, and its package is not there": {
			records: records{{Package: "test/a", Passed: []string{"TestA"}}}, complete: true,
			skips: skips{"test/gone TestA": "not everywhere"},
			lines: []string{"FAIL is in the list of skips, but not there: test/gone TestA"},
		},
		"listed, in a part of a run": {
			records: records{{Package: "test/a", Passed: []string{"TestA"}}}, passed: true,
			skips: skips{"test/a TestGone": "not everywhere"},
		},
		"any may be skipped": {
			records: records{{Package: "agent", Skipped: skipped}}, passed: true,
			lines: []string{"SKIPPED agent TestRoot: no such module"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			end := closing{out: &out, records: c.records, skips: c.skips, complete: c.complete, wall: 10 * time.Second}
			if passed := end.print(); passed != c.passed {
				t.Errorf("passed %t, want %t", passed, c.passed)
			}
			var got []string
			for line := range strings.Lines(out.String()) {
				got = append(got, strings.Join(strings.Fields(line), " "))
			}
			for _, line := range c.lines {
				if !slices.Contains(got, line) {
					t.Errorf("no line %q in\n%s", line, out.String())
				}
			}
		})
	}
}

func TestSkipsNeedAReason(t *testing.T) {
	file := filepath.Join(t.TempDir(), "skips")
	for text, ok := range map[string]bool{
		"# comment\n\nagent TestRoot: it needs SCTP\n": true,
		"agent TestRoot:\n":                            false,
		"agent TestRoot\n":                             false,
		"TestRoot: it needs SCTP\n":                    false,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readSkips(file); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestRecordsSurviveTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "records")
	for _, pkg := range []string{"a", "b"} {
		if err := (records{{Package: pkg, Retried: []outcome{{Test: "T"}}}}).appendTo(file); err != nil {
			t.Fatal(err)
		}
	}
	if rs, err := readRecords(file); err != nil || len(rs) != 2 || rs[1].Package != "b" || rs.retried() != 2 {
		t.Errorf("%+v, %v", rs, err)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readRecords(file); err == nil {
		t.Error("a broken file is read without an error")
	}
}

func TestLongOutputIsShortened(t *testing.T) {
	lines := slices.Repeat([]string{"line"}, 100)
	lines[0], lines[50], lines[99] = "first", "    modes_test.go:67: 3 connections failed", "last"
	got := shorten(lines)
	if n := len(got); n != longest/2+2 || got[0] != "first" || got[n-2] != "last" || got[n-1] != lines[50] {
		t.Errorf("%d lines: %q", len(got), got)
	}
}
