package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/test/load"
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
	failedSubtests = `
{"Action":"output","Package":"a","Test":"TestTable/one","Output":"    a_test.go:7: no\n"}
{"Action":"fail","Package":"a","Test":"TestTable/one"}
{"Action":"output","Package":"a","Test":"TestTable/two","Output":"    a_test.go:8: no\n"}
{"Action":"fail","Package":"a","Test":"TestTable/two"}
{"Action":"fail","Package":"a","Test":"TestTable"}
{"Action":"output","Package":"a","Output":"FAIL\n"}
{"Action":"fail","Package":"a","Elapsed":3}`
	failedThree = `
{"Action":"fail","Package":"a","Test":"TestTable/one"}
{"Action":"fail","Package":"a","Test":"TestTable/two"}
{"Action":"fail","Package":"a","Test":"TestTable/three"}
{"Action":"fail","Package":"a","Test":"TestTable"}
{"Action":"output","Package":"a","Output":"FAIL\n"}
{"Action":"fail","Package":"a","Elapsed":3}`
	passedWithOne = `
{"Action":"pass","Package":"a","Test":"TestTable/one"}
{"Action":"pass","Package":"a","Test":"TestTable"}
{"Action":"pass","Package":"a","Elapsed":1}`
	skippedThen = `
{"Action":"skip","Package":"a","Test":"TestSlow"}
{"Action":"pass","Package":"a","Test":"TestGood"}
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
{"Action":"output","Package":"a","Test":"TestSlow","Output":"    a_test.go:9: 2 connections failed: lost connections are never retried\n"}
{"Action":"fail","Package":"a","Test":"TestSlow"}
{"Action":"output","Package":"a","Output":"FAIL\n"}
{"Action":"fail","Package":"a","Elapsed":3}`
	lostInTable = `
{"Action":"output","Package":"a","Test":"TestSlow","Output":"| a row | 2 connections failed: lost connections are never retried |\n"}
{"Action":"fail","Package":"a","Test":"TestSlow"}
{"Action":"output","Package":"a","Output":"FAIL\n"}
{"Action":"fail","Package":"a","Elapsed":3}`
	repeatedPart = `
{"Action":"output","Package":"a","Test":"TestTable","Output":"    a_test.go:5: failed, and is repeated: row 7: took 3 s, want 2 s\n"}
{"Action":"pass","Package":"a","Test":"TestTable"}
{"Action":"pass","Package":"a","Elapsed":3}`
	notCompiled = `
{"ImportPath":"a [a.test]","Action":"build-output","Output":"a.go:1: undefined: x\n"}
{"Action":"fail","Package":"a","Elapsed":0}`
)

func TestAgain(t *testing.T) {
	for name, c := range map[string]struct {
		runs    []string
		passed  bool
		retried []outcome
		failed  []outcome
		printed string
	}{
		"failed, then passed": {
			runs: []string{failedOnce, passedThen}, passed: true,
			retried: []outcome{{"TestSlow", "failed, then passed. The first time it printed:", []string{"a_test.go:7: took 3 s, want 2 s"}}},
			printed: "RETRIED a TestSlow: failed, then passed",
		},
		"failed twice": {
			runs:    []string{failedOnce, failedOnce},
			failed:  []outcome{{"TestSlow", "failed twice. The first time it printed:", []string{"a_test.go:7: took 3 s, want 2 s"}}},
			printed: "took 3 s, want 2 s",
		},
		"repeated, but no test ran": {
			runs:    []string{failedOnce, `{"Action":"pass","Package":"a","Elapsed":1}`},
			failed:  []outcome{{"TestSlow", "failed, and did not run when it was repeated. It printed:", []string{"a_test.go:7: took 3 s, want 2 s"}}},
			printed: "took 3 s, want 2 s",
		},
		"a repeated subtest is not there any more": {
			runs: []string{failedSubtests, passedWithOne},
			failed: []outcome{
				{"TestTable/one", "failed, and did not run when it was repeated. It printed:", []string{"one:", "a_test.go:7: no", "two:", "a_test.go:8: no"}},
				{"TestTable/two", "failed, and did not run when it was repeated. It printed:", nil},
			},
			printed: "AGAIN a TestTable/two failed",
		},
		"a repeated test is skipped": {
			runs:    []string{failedOnce, skippedThen},
			failed:  []outcome{{"TestSlow", "failed, and did not run when it was repeated. It printed:", []string{"a_test.go:7: took 3 s, want 2 s"}}},
			printed: "took 3 s, want 2 s",
		},
		"three subtests of one test are three": {
			runs: []string{failedThree},
			failed: []outcome{
				{"TestTable/one", "failed, and is not repeated, because more than 2 tests failed. It printed:", nil},
				{"TestTable/two", "failed, and is not repeated, because more than 2 tests failed. It printed:", nil},
				{"TestTable/three", "failed, and is not repeated, because more than 2 tests failed. It printed:", nil},
			},
			printed: "FAIL  a",
		},
		"a panic ends the tests beside it": {
			runs: []string{panicked},
			failed: []outcome{{"", "not all of its tests ran. It printed:",
				[]string{"TestBad:", "panic: at the disco", "TestSlow:", "a_test.go:7: took 3 s, want 2 s"}}},
			printed: "at the disco",
		},
		"a data race stays one": {
			runs:    []string{raced},
			failed:  []outcome{{"TestSlow", "failed. It printed:", []string{"WARNING: DATA RACE"}}},
			printed: "DATA RACE",
		},
		"a lost connection stays lost": {
			runs:    []string{lost},
			failed:  []outcome{{"TestSlow", "failed. It printed:", []string{"a_test.go:9: 2 connections failed: lost connections are never retried"}}},
			printed: "2 connections failed",
		},
		"a lost connection in a line that is shown at once": {
			runs:    []string{lostInTable},
			failed:  []outcome{{"TestSlow", "failed. It printed:", nil}},
			printed: "| a row | 2 connections failed",
		},
		"a data race in such a line": {
			runs:    []string{strings.ReplaceAll(lostInTable, "lost connections are never retried", "WARNING: DATA RACE")},
			failed:  []outcome{{"TestSlow", "failed. It printed:", nil}},
			printed: "DATA RACE",
		},
		"does not compile": {
			runs:    []string{notCompiled},
			failed:  []outcome{{"", "not all of its tests ran. It printed:", []string{"a.go:1: undefined: x"}}},
			printed: "undefined: x",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			s := session{out: &out, show: "|", again: "a", budget: maxRetried, goTest: prints(c.runs...)}
			passed, err := s.run(t.Context(), []string{"-p", "1"}, []string{"a"})
			if err != nil || passed != c.passed {
				t.Errorf("passed %t, %v; want %t", passed, err, c.passed)
			}
			if len(s.records) != 1 {
				t.Fatalf("records: %+v", s.records)
			}
			if got := s.records[0].Retried; !reflect.DeepEqual(got, c.retried) {
				t.Errorf("retried\n%q\nwant\n%q", got, c.retried)
			}
			if got := s.records[0].Failed; !reflect.DeepEqual(got, c.failed) {
				t.Errorf("failed\n%q\nwant\n%q", got, c.failed)
			}
			if !strings.Contains(out.String(), c.printed) {
				t.Errorf("%q is not in the output:\n%s", c.printed, out.String())
			}
			if !strings.Contains(out.String(), "FAIL  a") {
				t.Errorf("the first failure is not in the output:\n%s", out.String())
			}
		})
	}
}

// A test that repeats a part of itself uses the budget of the whole run.
func TestPartsThatAreRepeated(t *testing.T) {
	var out strings.Builder
	s := session{out: &out, again: "a", budget: maxRetried, goTest: prints(repeatedPart)}
	passed, err := s.run(t.Context(), nil, []string{"a"})
	want := []outcome{{"TestTable", "a part failed, and was repeated. It first printed:", []string{"row 7: took 3 s, want 2 s"}}}
	if err != nil || !passed || !reflect.DeepEqual(s.records[0].Retried, want) || !strings.Contains(out.String(), "RETRIED a part of a TestTable: row 7") {
		t.Errorf("passed %t, %v, %+v\n%s", passed, err, s.records, out.String())
	}
	// Beside two such parts, a failed test must not be repeated.
	line := strings.SplitAfter(repeatedPart, "\n")[1]
	s = session{out: io.Discard, again: "a", budget: maxRetried, goTest: prints("\n" + line + line + failedOnce[1:])}
	if passed, err := s.run(t.Context(), nil, []string{"a"}); err != nil || passed || s.records.retried() != 2 || len(s.records[0].Failed) != 1 {
		t.Errorf("beside a failed test: passed %t, %v, %+v", passed, err, s.records)
	}
	// One that is logged in the second attempt counts too.
	s = session{out: io.Discard, again: "a", budget: maxRetried, goTest: prints(failedOnce, "\n"+line+passedThen[1:])}
	if passed, err := s.run(t.Context(), nil, []string{"a"}); err != nil || !passed || s.records.retried() != 2 {
		t.Errorf("in the second attempt: passed %t, %v, %+v", passed, err, s.records)
	}
}

// test/load has the words that this program looks for.
func TestWordsOfTests(t *testing.T) {
	if load.PartRepeated != partRepeated {
		t.Errorf("tests print %q; this program looks for %q", load.PartRepeated, partRepeated)
	}
	if load.NeverRetried != noSecondChance {
		t.Errorf("test/load prints %q; this program looks for %q", load.NeverRetried, noSecondChance)
	}
}

func TestWithoutAgainNothingIsRepeated(t *testing.T) {
	for name, s := range map[string]*session{
		"without -again":      {budget: maxRetried},
		"of other packages":   {again: "test/", budget: maxRetried},
		"the budget is spent": {again: "a", budget: 0},
	} {
		s.out, s.goTest = io.Discard, prints(failedOnce)
		passed, err := s.run(t.Context(), nil, nil)
		if err != nil || passed || len(s.records[0].Failed) != 1 {
			t.Errorf("%s: passed %t, %v, %+v", name, passed, err, s.records)
		}
	}
}

func TestPackageWithoutATest(t *testing.T) {
	const empty = `{"Action":"pass","Package":"a","Elapsed":1}`
	for flags, want := range map[string]bool{"-count 1": false, "-count 1 -run ^TestOther$": true, "-fuzz ^FuzzIt$": true} {
		s := &session{out: io.Discard, goTest: prints(empty)}
		passed, err := s.run(t.Context(), strings.Fields(flags), nil)
		if err != nil || passed != want || len(s.records[0].Failed) > 0 == want {
			t.Errorf("%s: passed %t, %v, %+v", flags, passed, err, s.records)
		}
	}
}

// A go test of this machine, with a package that fails once.
func TestAgainWithGo(t *testing.T) {
	directory := t.TempDir()
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
		if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	source, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(directory)
	t.Setenv("SUBTESTS", "yes") // then the subtest that passed must not run again
	t.Setenv("GOFLAGS", "-mod=mod")
	self := filepath.Join(directory, "testreport")
	if out, err := exec.Command("go", "build", "-C", source, "-o", self, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	command := &goTestCommand{dir: directory, self: self, file: filepath.Join(directory, "cpu")}
	s := session{out: io.Discard, again: "example.org/", subtests: true, budget: maxRetried, goTest: command.run}
	passed, err := s.run(t.Context(), []string{"-count", "1"}, []string{"example.org/flaky"})
	if err != nil || !passed {
		t.Fatalf("passed %t, %v: %+v", passed, err, s.records)
	}
	want := []outcome{{"TestFlaky/not_the/first_time", "failed, then passed. The first time it printed:", []string{"not_the/first_time:", "a_test.go:18: the reason"}}}
	if !reflect.DeepEqual(s.records[0].Retried, want) {
		t.Errorf("retried %+v, want %+v", s.records[0].Retried, want)
	}
	s.records[0].Package = "." // as a package of this repository, relative to where the run began
	if err := command.addCPU(s.records); err != nil || s.records[0].CPU <= 0 {
		t.Errorf("the CPU time is %s, %v", s.records[0].CPU, err)
	}
	if _, err := os.Stat(command.file); !os.IsNotExist(err) {
		t.Errorf("the file with the CPU times is left: %v", err)
	}
	passed, err = s.run(t.Context(), []string{"-count", "1", "-no-such-flag"}, []string{"example.org/flaky"})
	if err != nil || passed {
		t.Errorf("with a wrong flag: passed %t, %v", passed, err)
	}
}

func TestGoThatCannotBeStarted(t *testing.T) {
	t.Setenv("PATH", "")
	s := session{out: io.Discard, again: "a", goTest: (&goTestCommand{}).run}
	if passed, err := s.run(t.Context(), nil, nil); err == nil || passed {
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

func TestSilentFailureShowsWhatOthersReported(t *testing.T) {
	out, _, _ := collect(t, `
{"Action":"output","Package":"a","Test":"TestOther","Output":"    b_test.go:3: given to the wrong test\n"}
{"Action":"pass","Package":"a","Test":"TestOther"}
{"Action":"output","Package":"a","Test":"TestSilent","Output":"--- FAIL: TestSilent (179.27s)\n"}
{"Action":"fail","Package":"a","Test":"TestSilent"}
{"Action":"output","Package":"a","Output":"FAIL\n"}
{"Action":"fail","Package":"a","Elapsed":1}`)
	if !strings.Contains(out, "given to the wrong test") {
		t.Errorf("the output gives no reason:\n%s", out)
	}
}
