package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const allowFile = "hack/language/allow.txt"

func main() {
	root := flag.String("root", ".", "the repository")
	every := flag.Bool("all", false, "ignore "+allowFile+" and print every use")
	flag.Parse()
	clean, err := run(os.Stdout, *root, *every, flag.Args())
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "language:", err)
		os.Exit(2)
	case !clean:
		os.Exit(1)
	}
}

// run checks the files of the repository below the given paths, or all of them. It
// reports whether nothing is left to change.
func run(out io.Writer, root string, every bool, below []string) (bool, error) {
	all := rules()
	allowed, err := os.ReadFile(filepath.Join(root, allowFile))
	if err != nil {
		return false, fmt.Errorf("reading the exceptions: %w", err)
	}
	list, err := exceptions(string(allowed), all)
	if err != nil {
		return false, fmt.Errorf("%s: %w", allowFile, err)
	}
	if every {
		list = nil
	}
	found, err := search(root, below, all)
	if err != nil {
		return false, err
	}
	left := remaining(found, list)
	for _, f := range left {
		fmt.Fprintln(out, f)
	}
	clean := len(left) == 0
	if len(below) > 0 {
		return clean, nil
	}
	for _, e := range list {
		if !e.used {
			fmt.Fprintf(out, "%s:%d: %s has no %q: delete this line\n", allowFile, e.line, e.path, e.phrase)
			clean = false
		}
	}
	return clean, nil
}

// search reads the files that git knows or would add.
func search(root string, below []string, all []rule) ([]finding, error) {
	list := exec.Command("git", append([]string{"ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"}, below...)...)
	list.Dir = root
	output, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("listing the files by git: %w", err)
	}
	var found []finding
	for file := range strings.SplitSeq(string(output), "\x00") {
		if !readable(file) {
			continue
		}
		content, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted, but not yet in git
		}
		if err != nil {
			return nil, fmt.Errorf("reading a file: %w", err)
		}
		here, err := find(file, string(content), all)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		found = append(found, here...)
	}
	return found, nil
}
