package connect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// mounted is a directory as Kubernetes mounts a ConfigMap: a file is a link into a directory
// that is itself a link, which is swapped.
type mounted struct {
	*testing.T
	directory string
	versions  int
}

// swap puts in a new version of the file; without text there is none.
func (m *mounted) swap(text string) {
	m.Helper()
	m.versions++
	version := fmt.Sprintf("..version_%d", m.versions)
	must(m.T, os.Mkdir(filepath.Join(m.directory, version), 0o700))
	if text != "" {
		write(m.T, filepath.Join(m.directory, version, "endpoints"), text)
	}
	must(m.T, os.Symlink(version, filepath.Join(m.directory, "..data_tmp")))
	must(m.T, os.Rename(filepath.Join(m.directory, "..data_tmp"), filepath.Join(m.directory, "..data")))
	err := os.Symlink(filepath.Join("..data", "endpoints"), m.file())
	if !errors.Is(err, os.ErrExist) {
		must(m.T, err)
	}
}

func (m *mounted) file() string { return filepath.Join(m.directory, "endpoints") }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// poll lets one pause pass, and waits until the file has been read.
func poll(t *testing.T, clk *clocktesting.FakeClock) {
	t.Helper()
	waiting(t, clk)
	clk.Step(filePause)
	waiting(t, clk)
}

// waiting waits until a goroutine waits for the clock.
func waiting(t *testing.T, clk *clocktesting.FakeClock) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !clk.HasWaiters() {
		select {
		case <-ctx.Done():
			t.Fatal("the file is not read")
		case <-tick.C:
		}
	}
}

func TestFileIsSwapped(t *testing.T) {
	a := newAuthority(t)
	first, second, fallback := a.server(t), a.server(t), a.server(t)
	m := &mounted{T: t, directory: t.TempDir()}
	clk := clocktesting.NewFakeClock(time.Now())
	config := a.open(t, Options{}, clk).Config()
	config.Host, config.WrapTransport, config.Dial = fallback.URL, nil, nil
	w := a.openAs(t, config, Options{APIServersFile: m.file()}, clk)
	run(w)

	// Before there is a file, the address that comes with the credentials.
	must(t, w.ask())
	w.answered(fallback, 1)
	if reported := w.log.with("File with addresses of API servers not found"); len(reported) != 1 {
		t.Errorf("log %q", w.log.with(""))
	}

	m.swap("# the control plane\n\n" + first.URL + "\n")
	poll(t, clk)
	must(t, w.ask())
	w.answered(first, 1)

	m.swap("  " + second.URL + "  \nhttps://\n192.0.2.10\n" + first.URL + "/\n" + second.URL)
	poll(t, clk)
	must(t, w.ask())
	w.answered(first, 2) // it is listed still, so why change
	poll(t, clk)
	if reported := w.log.with("192.0.2.10"); len(reported) != 1 || !strings.Contains(reported[0], m.file()) || !strings.Contains(reported[0], `"count"=2`) {
		t.Errorf("lines that cannot be read: log %q", reported)
	}

	m.swap(second.URL)
	poll(t, clk)
	must(t, w.ask())
	w.answered(second, 1)

	// The known servers stay while the file has none.
	for _, nothing := range []string{"# nothing\n", "rubbish\n", ""} {
		m.swap(nothing)
		poll(t, clk)
		must(t, w.ask())
	}
	w.answered(second, 4)
	w.answered(fallback, 1)
}

// run follows the file until the test ends.
func run(w *way) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); w.Connection.Run(ctx) }()
	w.Cleanup(func() { cancel(); <-done })
}

// A new list may be wrong: the server that answered last is asked after those
// on it, until one of them has answered.
func TestWrongListKeepsTheServerThatAnswered(t *testing.T) {
	a := newAuthority(t)
	old, wrong := a.server(t), dead(t)
	m := &mounted{T: t, directory: t.TempDir()}
	m.swap(old.URL)
	clk := clocktesting.NewFakeClock(time.Now())
	w := a.open(t, Options{APIServersFile: m.file()}, clk)
	run(w)
	must(t, w.ask())
	m.swap(wrong)
	poll(t, clk)
	must(t, w.ask())
	w.answered(old, 2)

	right := a.server(t)
	m.swap(right.URL)
	poll(t, clk)
	must(t, w.ask())
	w.answered(right, 1)
	w.answered(old, 2)
	if got := w.servers.order(); !slices.Equal(got, []server{server(right.URL)}) {
		t.Errorf("after another has answered, these may be asked: %s", got)
	}
}

func TestOrder(t *testing.T) {
	s := &servers{clock: clocktesting.NewFakePassiveClock(time.Now()), log: (&lines{}).logger(),
		pick: func(n int) int { return n - 1 }, fallback: "https://fallback:443"}
	expect := func(want ...server) {
		t.Helper()
		if got := s.order(); !slices.Equal(got, want) {
			t.Errorf("order %s, want %s", got, want)
		}
	}
	s.replace(nil)
	expect("https://fallback:443")
	s.replace([]server{"a", "b", "c"})
	expect("c", "a", "b") // by chance
	s.failed("c", errors.New("no"))
	s.failed("c", errors.New("no")) // another request, which began before
	expect("a", "b", "c")
	s.answered("a")
	s.replace([]server{"d", "e"})
	expect("e", "d", "a")
	s.failed("e", errors.New("no"))
	s.failed("a", errors.New("no"))
	if s.current != "a" && s.current != "d" {
		t.Errorf("current %s", s.current)
	}
	s.answered("d")
	expect("d", "e")

	s = &servers{clock: s.clock, log: s.log, pick: s.pick, fixed: []server{"x", "y"}, fallback: "https://fallback:443"}
	s.replace([]server{"y", "z"})
	expect("x", "y", "z") // those of the command line first
}

// FuzzParseList reads any text as a list of API servers. What is read must be read again
// from its own text, and each line is a server, bad, or without meaning.
func FuzzParseList(f *testing.F) {
	for _, text := range []string{"https://10.0.0.1:6443\n# comment\n\nhttps://[fd00::1]", "https://a.example\r\nhttps://a.example:443", "http://a", "https://a/?b"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		found, bad := parseList(text)
		if lines := strings.Count(text, "\n") + 1; len(found)+len(bad) > lines {
			t.Errorf("%d lines have %d servers and %d bad ones", lines, len(found), len(bad))
		}
		var again strings.Builder
		for _, s := range found {
			again.WriteString(string(s) + "\n")
		}
		if same, bad := parseList(again.String()); !slices.Equal(same, found) || len(bad) > 0 {
			t.Errorf("%q is read as %q, and that as %q, bad %q", text, found, same, bad)
		}
	})
}
