package main

import (
	"context"
	"os"
	"os/signal"
	"time"

	"golang.org/x/term"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/command"
)

// version is set by the linker.
var version = "(devel)"

func main() { os.Exit(run()) }

// run returns the exit code.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	width, color := terminal(int(os.Stdout.Fd()), os.Getenv)
	return command.Run(ctx, os.Args[1:], command.Options{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Version: version, Now: time.Now, After: time.After, Width: width, Color: color,
	})
}

// terminal returns how wide the terminal of a file descriptor is, and whether to use colors
// (https://no-color.org); 0 and false if there is none.
func terminal(fd int, env func(string) string) (width int, color bool) {
	width, _, err := term.GetSize(fd)
	if err != nil {
		return 0, false
	}
	return width, env("NO_COLOR") == "" && env("TERM") != "dumb"
}
