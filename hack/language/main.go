package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// run checks the files of the repository below the given paths, or all of them and the
// links between its pages. It reports whether nothing is left to change.
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
	files, err := read(root, below)
	if err != nil {
		return false, err
	}
	var found []finding
	for _, file := range slices.Sorted(maps.Keys(files)) {
		here, err := find(file, files[file], all)
		if err != nil {
			return false, fmt.Errorf("%s: %w", file, err)
		}
		found = append(found, here...)
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
	maps.DeleteFunc(files, func(file, _ string) bool { return filepath.Ext(file) != ".md" })
	broken := brokenLinks(files, func(file string) bool {
		_, err := os.Stat(filepath.Join(root, filepath.FromSlash(file)))
		return err == nil
	})
	slices.Sort(broken)
	for _, b := range broken {
		fmt.Fprintln(out, b)
	}
	return clean && len(broken) == 0, nil
}

// read returns the content of the readable files that git knows or would add.
func read(root string, below []string) (map[string]string, error) {
	list := exec.Command("git", append([]string{"ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"}, below...)...)
	list.Dir = root
	output, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("listing the files by git: %w", err)
	}
	files := map[string]string{}
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
		files[file] = string(content)
	}
	return files, nil
}
