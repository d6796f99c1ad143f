package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/nodeproxy-io/nodeproxy/test/recorded"
)

func main() {
	from := flag.String("from", "", "the directory with recorded states, a directory each")
	to := flag.String("to", "", "the directory with stored states, a file each")
	parent := flag.String("parent", "", "from which stored state those in -from are to differ (default: as before; new states are stored in full)")
	flag.Parse()
	if err := run(*from, *to, *parent); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(from, to, parent string) error {
	if to == "" {
		return errors.New("give -to")
	}
	states, err := recorded.LoadAll(to)
	if err != nil {
		return err
	}
	if from != "" {
		fresh, err := recorded.LoadAll(from)
		if err != nil {
			return err
		}
		for name, state := range fresh {
			if old := states[name]; old != nil {
				state.Parent, state.Commands, state.Forbidden = old.Parent, old.Commands, old.Forbidden
			}
			state.Parent = cmp.Or(parent, state.Parent)
			states[name] = state
		}
	}
	return recorded.Store(to, states)
}
