package uml_test

import (
	"os"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/test/uml"
)

func TestMain(m *testing.M) { uml.Main(m) }

// boot runs a test in a kernel of its own.
func boot(t *testing.T, test string) uml.Outcome {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: run sudo make test")
	}
	out, err := uml.Run(t.Context(), uml.Options{Test: test, Folder: t.TempDir()})
	if err != nil {
		t.Fatalf("%v\nthe test printed:\n%s", err, out.Output)
	}
	t.Logf("in %.1f s:\n%s", out.Took.Seconds(), out.Output)
	return out
}

func TestOutcome(t *testing.T) {
	for test, want := range map[string]int{"TestInsidePasses": 0, "TestInsideFails": 1} {
		out := boot(t, test)
		if out.Status != want || !strings.Contains(out.Output, "here is "+test) || string(out.Result) != "result of "+test {
			t.Errorf("%s: %+v", test, out)
		}
	}
}

func TestInsidePasses(t *testing.T) { tell(t) }

func TestInsideFails(t *testing.T) {
	tell(t)
	if uml.Inside() {
		t.Fail()
	}
}

func tell(t *testing.T) {
	if !uml.Inside() {
		return // TestOutcome runs it
	}
	t.Log("here is", t.Name())
	if err := uml.Report([]byte("result of " + t.Name())); err != nil {
		t.Fatal(err)
	}
}
