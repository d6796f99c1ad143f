package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	failedOnce = `
{"Action":"output","Package":"a","Test":"TestSlow","Output":"=== RUN   TestSlow\n"}
{"Action":"output","Package":"a","Test":"TestSlow","Output":"    a_test.go:7: took 3 s, want 2 s\n"}
{"Action":"fail","Package":"a","Test":"TestSlow"}
{"Action":"pass","Package":"a","Test":"TestGood"}
{"Action":"output","Package":"a","Output":"FAIL\n"}
{"Action":"output","Package":"a","Output":"FAIL\ta\t3.1s\n"}
{"Action":"fail","Package":"a","Elapsed":3}`
	passedThen = `
{"Action":"pass","Package":"a","Test":"TestSlow"}
{"Action":"pass","Package":"a","Elapsed":1}`
	panicked = `
{"Action":"output","Package":"a","Test":"TestSlow","Output":"    a_test.go:7: took 3 s, want 2 s\n"}
{"Action":"fail","Package":"a","Test":"TestSlow"}
{"Action":"output","Package":"a","Test":"TestBad","Output":"panic: at the disco\n"}
{"Action":"fail","Package":"a","Test":"TestBad"}
{"Action":"fail","Package":"a","Elapsed":3}`
	raced = `
{"Action":"output","Package":"a","Test":"TestSlow","Output":"WARNING: DATA RACE\n"}
{"Action":"fail","Package":"a","Test":"TestSlow"}
{"Action":"output","Package":"a","Output":"FAIL\n"}
{"Action":"fail","Package":"a","Elapsed":3}`
	lost = `
{"Action":"output","Package":"a","Test":"TestSlow","Output":"    a_test.go:9: 2 connections failed: no second chance\n"}
{"Action":"fail","Package":"a","Test":"TestSlow"}
{"Action":"output","Package":"a","Output":"FAIL\n"}
{"Action":"fail","Package":"a","Elapsed":3}`
	notCompiled = `
{"ImportPath":"a [a.test]","Action":"build-output","Output":"a.go:1: undefined: x\n"}
{"Action":"fail","Package":"a","Elapsed":0}`
)

func TestAgain(t *testing.T) {
	for name, c := range map[string]struct {
		runs    []string
		passed  bool
		summary []string
		said    string
	}{
		"failed, then passed": {
			runs: []string{failedOnce, passedThen}, passed: true,
			summary: []string{"RETRIED a TestSlow: failed, then passed. The first time it said:", "        a_test.go:7: took 3 s, want 2 s"},
			said:    "RETRIED a TestSlow: failed, then passed",
		},
		"failed twice": {
			runs:    []string{failedOnce, failedOnce},
			summary: []string{"FAIL    a TestSlow: It failed twice. The first time it said:", "        a_test.go:7: took 3 s, want 2 s"},
			said:    "took 3 s, want 2 s",
		},
		"a panic ends the tests beside it": {
			runs: []string{panicked},
			summary: []string{"FAIL    a, not all of its tests have run. It said:",
				"        TestBad:", "        panic: at the disco", "        TestSlow:", "        a_test.go:7: took 3 s, want 2 s"},
			said: "at the disco",
		},
		"a data race stays one": {
			runs:    []string{raced},
			summary: []string{"FAIL    a TestSlow: It said:", "        WARNING: DATA RACE"},
			said:    "DATA RACE",
		},
		"a lost connection stays lost": {
			runs:    []string{lost},
			summary: []string{"FAIL    a TestSlow: It said:", "        a_test.go:9: 2 connections failed: no second chance"},
			said:    "2 connections failed",
		},
		"does not compile": {
			runs:    []string{notCompiled},
			summary: []string{"FAIL    a, not all of its tests have run. It said:", "        a.go:1: undefined: x"},
			said:    "undefined: x",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			s := session{out: &out, again: true, goTest: says(c.runs...)}
			passed, err := s.run(t.Context(), []string{"-p", "1"}, []string{"a"})
			if err != nil || passed != c.passed {
				t.Errorf("passed %t, %v; want %t", passed, err, c.passed)
			}
			if !slices.Equal(s.summary, c.summary) {
				t.Errorf("the summary is\n%s\nwant\n%s", strings.Join(s.summary, "\n"), strings.Join(c.summary, "\n"))
			}
			if !strings.Contains(out.String(), c.said) {
				t.Errorf("%q is not in what is shown:\n%s", c.said, out.String())
			}
			if !strings.Contains(out.String(), "FAIL  a") {
				t.Errorf("the first failure is not shown:\n%s", out.String())
			}
		})
	}
}

func TestWithoutAgainNothingIsRepeated(t *testing.T) {
	s := session{out: io.Discard, goTest: says(failedOnce)}
	passed, err := s.run(t.Context(), nil, nil)
	if err != nil || passed {
		t.Errorf("passed %t, %v", passed, err)
	}
	if want := "FAIL    a TestSlow: It said:"; len(s.summary) != 2 || s.summary[0] != want {
		t.Errorf("the summary is %q, want %q", s.summary, want)
	}
}

// A go test of this machine, with a package that fails once.
func TestAgainWithGo(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.org/flaky\n\ngo 1.26\n",
		"a_test.go": `package flaky

import (
	"os"
	"testing"
)

func TestGood(t *testing.T) {}

func TestFlaky(t *testing.T) {
	t.Run("well", func(t *testing.T) {
		if err := os.Mkdir("ran-twice", 0o755); err != nil && os.Getenv("SUBTESTS") != "" {
			t.Fatal(err)
		}
	})
	t.Run("not the/first time", func(t *testing.T) {
		if err := os.Mkdir("seen", 0o755); err == nil {
			t.Error("the reason")
		}
	})
}
`} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(folder)
	t.Setenv("SUBTESTS", "yes") // then the subtest that passed must not run again
	t.Setenv("GOFLAGS", "-mod=mod")
	s := session{out: io.Discard, again: true, subtests: true, goTest: goTest}
	passed, err := s.run(t.Context(), []string{"-count", "1"}, []string{"example.org/flaky"})
	if err != nil || !passed {
		t.Errorf("passed %t, %v: %q", passed, err, s.summary)
	}
	want := []string{"RETRIED example.org/flaky TestFlaky: failed, then passed. The first time it said:",
		"        not_the/first_time:", "        a_test.go:18: the reason"}
	if !slices.Equal(s.summary, want) {
		t.Errorf("the summary is %q, want %q", s.summary, want)
	}
	passed, err = s.run(t.Context(), []string{"-count", "1", "-no-such-flag"}, []string{"example.org/flaky"})
	if err != nil || passed {
		t.Errorf("with a wrong flag: passed %t, %v", passed, err)
	}
}

func TestGoThatCannotBeStarted(t *testing.T) {
	t.Setenv("PATH", "")
	s := session{out: io.Discard, again: true, goTest: goTest}
	if passed, err := s.run(context.Background(), nil, nil); err == nil || passed {
		t.Errorf("passed %t, %v", passed, err)
	}
	if _, err := exec.LookPath("go"); err == nil {
		t.Fatal("go is there all the same")
	}
}

func TestPattern(t *testing.T) {
	tests := []failedTest{
		{name: "TestOwn", own: true, subtests: []string{"TestOwn/a"}},
		{name: "TestFaults", subtests: []string{"TestFaults/group", "TestFaults/group/a.b", "TestFaults/group/c", "TestFaults/other"}},
	}
	for subtests, want := range map[bool]string{
		false: `^TestOwn$|^TestFaults$`,
		true:  `^TestOwn$|^TestFaults$/^group$/^a\.b$|^TestFaults$/^group$/^c$|^TestFaults$/^other$`,
	} {
		if got := pattern(tests, subtests); got != want {
			t.Errorf("with subtests %t: %s, want %s", subtests, got, want)
		}
	}
}

func TestSilentFailureShowsWhatOthersSaid(t *testing.T) {
	out, _ := collect(t, `
{"Action":"output","Package":"a","Test":"TestOther","Output":"    b_test.go:3: given to the wrong test\n"}
{"Action":"pass","Package":"a","Test":"TestOther"}
{"Action":"output","Package":"a","Test":"TestSilent","Output":"--- FAIL: TestSilent (179.27s)\n"}
{"Action":"fail","Package":"a","Test":"TestSilent"}
{"Action":"output","Package":"a","Output":"FAIL\n"}
{"Action":"fail","Package":"a","Elapsed":1}`, "")
	if !strings.Contains(out, "given to the wrong test") {
		t.Errorf("nothing tells why:\n%s", out)
	}
}

func TestLongOutputIsCut(t *testing.T) {
	var lines []string
	for range 100 {
		lines = append(lines, "line")
	}
	lines[0], lines[99] = "first", "last"
	got := indent(lines)
	if len(got) != longest+1 || !strings.HasSuffix(got[0], "first") || !strings.HasSuffix(got[longest], "last") {
		t.Errorf("%d lines: %q", len(got), got)
	}
}
