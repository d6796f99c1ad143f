package main

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestTerminal(t *testing.T) {
	t.Parallel()
	pty, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	defer pty.Close()
	if err := unix.IoctlSetWinsize(int(pty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: 77, Row: 20}); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for name, c := range map[string]struct {
		file  *os.File
		env   map[string]string
		width int
		color bool
	}{
		"terminal":               {pty, nil, 77, true},
		"terminal with NO_COLOR": {pty, map[string]string{"NO_COLOR": "1"}, 77, false},
		"terminal without color": {pty, map[string]string{"TERM": "dumb"}, 77, false},
		"file":                   {file, nil, 0, false},
	} {
		width, color := terminal(int(c.file.Fd()), func(key string) string { return c.env[key] })
		if width != c.width || color != c.color {
			t.Errorf("%s: width %d, color %t", name, width, color)
		}
	}
}
