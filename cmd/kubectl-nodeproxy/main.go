package main

import (
	"context"
	"os"
	"os/signal"
	"time"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/command"
)

// version is set by the linker.
var version = "(devel)"

func main() { os.Exit(run()) }

// run returns the exit code.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	return command.Run(ctx, os.Args[1:], command.Options{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Version: version, Now: time.Now, After: time.After,
	})
}
