package uml_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/uml"
)

func TestMain(m *testing.M) { uml.Main(m) }

// boot runs a test in a kernel of its own.
func boot(t *testing.T, test string) uml.Outcome {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: run sudo make test")
	}
	out, err := uml.Run(t.Context(), uml.Options{Test: test, Directory: t.TempDir()})
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

// A test that does not exist, or is skipped, must not count as passed.
func TestOutcomeOfNoTest(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: run sudo make test")
	}
	for test, want := range map[string]string{
		"TestThatIsNot":        "TestThatIsNot did not run",
		"TestInsideSkipsAPart": "TestInsideSkipsAPart/part was skipped",
	} {
		out, err := uml.Run(t.Context(), uml.Options{Test: test, Directory: t.TempDir()})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q\n%s", test, err, want, out.Output)
		}
	}
}

// A test that hangs states where before its kernel is ended.
func TestOutcomeOfTestThatHangs(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: run sudo make test")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 32*time.Second)
	defer cancel()
	out, err := uml.Run(ctx, uml.Options{Test: "TestInsideHangs", Directory: t.TempDir()})
	if err != nil || out.Status == 0 || !strings.Contains(out.Output, "uml_test.TestInsideHangs(") {
		t.Errorf("status %d, %v\n%s", out.Status, err, out.Output)
	}
}

// A kernel that has done its work and does not power off is ended.
func TestOutcomeOfKernelThatStays(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: run sudo make test")
	}
	out, err := uml.Run(t.Context(), uml.Options{Test: "TestInsideStays", Directory: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "TestInsideStays did not run") || out.Took > time.Minute {
		t.Errorf("after %s: %v\n%s", out.Took, err, out.Output)
	}
}

func TestInsideStays(t *testing.T) {
	if !uml.Inside() {
		return
	}
	if err := os.WriteFile(filepath.Join(os.Getenv("NODEPROXY_UML"), "status"), []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	select {}
}

func TestInsideHangs(*testing.T) {
	if uml.Inside() {
		select {}
	}
}

func TestInsideSkipsAPart(t *testing.T) {
	if uml.Inside() {
		t.Run("part", func(t *testing.T) { t.Skip("to see what becomes of it") })
	}
}

func TestInsidePasses(t *testing.T) { show(t) }

func TestInsideFails(t *testing.T) {
	show(t)
	if uml.Inside() {
		t.Fail()
	}
}

func show(t *testing.T) {
	if !uml.Inside() {
		return // TestOutcome runs it
	}
	t.Log("here is", t.Name())
	if err := uml.Report([]byte("result of " + t.Name())); err != nil {
		t.Fatal(err)
	}
}
