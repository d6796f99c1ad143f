package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const events = `
{"Action":"start","Package":"github.com/nodeproxy-io/nodeproxy/a"}
{"Action":"run","Package":"github.com/nodeproxy-io/nodeproxy/a","Test":"TestGood"}
{"Action":"output","Package":"github.com/nodeproxy-io/nodeproxy/a","Test":"TestGood","Output":"noise of a good test\n"}
{"Action":"pass","Package":"github.com/nodeproxy-io/nodeproxy/a","Test":"TestGood","Elapsed":0.1}
{"Action":"output","Package":"github.com/nodeproxy-io/nodeproxy/a","Test":"TestRoot","Output":"=== RUN   TestRoot\n"}
{"Action":"output","Package":"github.com/nodeproxy-io/nodeproxy/a","Test":"TestRoot","Output":"    a_test.go:12: no such module: run make modules\n"}
{"Action":"output","Package":"github.com/nodeproxy-io/nodeproxy/a","Test":"TestRoot","Output":"--- SKIP: TestRoot (0.00s)\n"}
{"Action":"skip","Package":"github.com/nodeproxy-io/nodeproxy/a","Test":"TestRoot","Elapsed":0}
{"Action":"pass","Package":"github.com/nodeproxy-io/nodeproxy/a","Elapsed":1.25}
`

func TestReportOfPassedTests(t *testing.T) {
	file := filepath.Join(t.TempDir(), "left-out")
	out, ok := collect(t, events, file)
	if !ok {
		t.Error("reported as failed")
	}
	if want := "ok    a 1.2 s 1 passed, 1 left out"; strings.Join(strings.Fields(out), " ") != strings.Join(strings.Fields(want), " ") {
		t.Errorf("got %q, want %q", out, want)
	}
	left, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if want := "  a TestRoot: no such module: run make modules\n"; string(left) != want {
		t.Errorf("left out: got %q, want %q", left, want)
	}
}

// TestReportShowsAtOnce gives no result, as while tests run.
func TestReportShowsAtOnce(t *testing.T) {
	out, _ := collect(t, `
{"Action":"output","Package":"a","Test":"TestTable","Output":"| a row |\n"}
{"Action":"output","Package":"a","Test":"TestTable","Output":"noise\n"}`, "")
	if want := "| a row |\n"; out != want {
		t.Errorf("got %q, want %q", out, want)
	}
}

func TestReportOfSkippedSpecs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "left-out")
	collect(t, `
{"Action":"output","Package":"a","Test":"TestSuite","Output":"SUCCESS! -- 8 Passed | 0 Failed | 0 Pending | 12 Skipped\n"}
{"Action":"pass","Package":"a","Test":"TestSuite"}
{"Action":"output","Package":"b","Test":"TestSuite","Output":"SUCCESS! -- 8 Passed | 0 Failed | 0 Pending | 0 Skipped\n"}
{"Action":"pass","Package":"b","Test":"TestSuite"}`, file)
	left, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if want := "  a TestSuite: 12 of its specs\n"; string(left) != want {
		t.Errorf("left out: got %q, want %q", left, want)
	}
}

func TestReportOfCachedResults(t *testing.T) {
	out, _ := collect(t, `
{"Action":"output","Package":"a","Output":"ok  \ta\t(cached)\n"}
{"Action":"pass","Package":"a","Elapsed":0}`, "")
	if !strings.HasSuffix(out, "0 passed (nothing changed since it was run)\n") {
		t.Errorf("does not say that nothing was run: %q", out)
	}
}

func TestReportOfFailures(t *testing.T) {
	for name, c := range map[string]struct{ events, want string }{
		"a failed test": {`
{"Action":"output","Package":"b","Test":"TestBad","Output":"b_test.go:3: got 1, want 2\n"}
{"Action":"fail","Package":"b","Test":"TestBad"}
{"Action":"fail","Package":"b","Elapsed":1}`, "got 1, want 2"},
		"a panic": {`
{"Action":"output","Package":"b","Test":"TestBad","Output":"panic: at the disco\n"}
{"Action":"fail","Package":"b","Elapsed":1}`, "at the disco"},
		"a package that does not compile": {`
{"ImportPath":"b","Action":"build-output","Output":"b.go:1: undefined: x\n"}
{"Action":"fail","Package":"b","Elapsed":0}`, "undefined: x"},
	} {
		t.Run(name, func(t *testing.T) {
			out, ok := collect(t, c.events, "")
			if ok {
				t.Error("not reported as failed")
			}
			if !strings.Contains(out, c.want) || !strings.Contains(out, "FAIL  b") {
				t.Errorf("the report lacks %q or the package:\n%s", c.want, out)
			}
		})
	}
}

func TestReportPassesOnWhatIsNoEvent(t *testing.T) {
	if out, _ := collect(t, "go: no such flag\n", ""); out != "go: no such flag\n" {
		t.Errorf("got %q", out)
	}
}

func collect(t *testing.T, events, file string) (out string, ok bool) {
	t.Helper()
	var text strings.Builder
	s := session{out: &text, show: "|", goTest: says(events)}
	ok, err := s.run(t.Context(), nil, nil)
	if err := errors.Join(err, add(file, s.leftOut)); err != nil {
		t.Fatal(err)
	}
	return text.String(), ok
}

// says is a go test that says each time the next of what is given.
func says(events ...string) func(context.Context, []string, func(io.Reader) error) error {
	return func(_ context.Context, _ []string, read func(io.Reader) error) error {
		now := events[0]
		events = events[1:]
		return read(strings.NewReader(strings.TrimPrefix(now, "\n")))
	}
}
