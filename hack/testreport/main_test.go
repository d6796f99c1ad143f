package main

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"
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

func TestPassedAndSkippedTests(t *testing.T) {
	out, rs, ok := collect(t, events)
	if !ok {
		t.Error("reported as failed")
	}
	if want := "ok    a 1.2 s 1 passed, 1 skipped"; strings.Join(strings.Fields(out), " ") != strings.Join(strings.Fields(want), " ") {
		t.Errorf("got %q, want %q", out, want)
	}
	if len(rs) != 1 || rs[0].Package != "a" || rs[0].Wall != 1250*time.Millisecond || rs[0].Tests != 1 {
		t.Fatalf("records: %+v", rs)
	}
	if s := rs[0].Skipped; len(s) != 1 || s[0].Test != "TestRoot" || s[0].Verdict != "no such module: run make modules" {
		t.Errorf("skipped: %+v", s)
	}
}

// No result follows these lines, as while tests run.
func TestReportShowsAtOnce(t *testing.T) {
	out, _, _ := collect(t, `
{"Action":"output","Package":"a","Test":"TestTable","Output":"| a row |\n"}
{"Action":"output","Package":"a","Test":"TestTable","Output":"noise\n"}`)
	if want := "| a row |\n"; out != want {
		t.Errorf("got %q, want %q", out, want)
	}
}

func TestSpecs(t *testing.T) {
	_, rs, _ := collect(t, `
{"Action":"output","Package":"a","Test":"TestSuite","Output":"SUCCESS! -- 8 Passed | 0 Failed | 3 Pending | 12 Skipped\n"}
{"Action":"pass","Package":"a","Test":"TestSuite"}
{"Action":"pass","Package":"a"}
{"Action":"output","Package":"b","Test":"TestSuite","Output":"SUCCESS! -- 8 Passed | 0 Failed | 0 Pending | 0 Skipped\n"}
{"Action":"pass","Package":"b","Test":"TestSuite"}
{"Action":"pass","Package":"b"}`)
	if len(rs) != 2 || rs[0].Tests != 9 || rs[1].Tests != 9 || len(rs[1].Skipped) != 0 {
		t.Fatalf("records: %+v", rs)
	}
	if s := rs[0].Skipped; len(s) != 2 || s[0].Verdict != "3 of its specs are pending" || s[1].Verdict != "12 of its specs are skipped" {
		t.Errorf("skipped: %+v", s)
	}
}

func TestFailures(t *testing.T) {
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
			out, rs, ok := collect(t, c.events)
			if ok || len(rs) != 1 || len(rs[0].Failed) != 1 {
				t.Errorf("not reported as failed: %t, %+v", ok, rs)
			}
			if !strings.Contains(out, c.want) || !strings.Contains(out, "FAIL  b") {
				t.Errorf("the report lacks %q or the package:\n%s", c.want, out)
			}
		})
	}
}

func TestOutputOfTheGoCommandIsPassedOn(t *testing.T) {
	if out, _, _ := collect(t, "go: no such flag\n"); out != "go: no such flag\n" {
		t.Errorf("got %q", out)
	}
}

func collect(t *testing.T, events string) (out string, rs records, ok bool) {
	t.Helper()
	var text strings.Builder
	s := session{out: &text, show: "|", goTest: prints(events)}
	ok, err := s.run(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return text.String(), s.records, ok
}

// prints is a go test that prints each time the next of the given events.
func prints(events ...string) func(context.Context, []string, func(io.Reader) error) error {
	return func(_ context.Context, _ []string, read func(io.Reader) error) error {
		now := events[0]
		events = events[1:]
		return read(strings.NewReader(strings.TrimPrefix(now, "\n")))
	}
}
