package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// options are the flags.
type options struct {
	out, icon, scorecard string
	examples             files
	version
}

func main() {
	o := options{}
	flag.StringVar(&o.out, "out", ".", "the output `directory` of bundle and bundle.Dockerfile")
	flag.StringVar(&o.icon, "icon", "", "the icon, an SVG `file`")
	flag.StringVar(&o.scorecard, "scorecard", "", "the configuration `file` of scorecard")
	flag.Var(&o.examples, "example", "a `file` with an example of a user-written kind; may be repeated")
	flag.StringVar(&o.release, "release", "", "the version, as in 0.1.0")
	flag.StringVar(&o.replaces, "replaces", "", "the replaced `version`; empty: the catalog has it")
	flag.StringVar(&o.channel, "channel", "", "the `name` of the bundle's channel")
	flag.StringVar(&o.controllerImage, "controller-image", "", "the `image` of the controller")
	flag.StringVar(&o.agentImage, "agent-image", "", "the `image` of the agents")
	flag.Parse()
	if err := run(o, os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "hack/bundle:", err)
		os.Exit(1)
	}
}

// files is a flag that may be repeated.
type files []string

// String is the flag as text.
func (f *files) String() string { return strings.Join(*f, " ") }

// Set adds a file.
func (f *files) Set(name string) error {
	*f = append(*f, name)
	return nil
}

func run(o options, objects io.Reader) error {
	in := input{version: o.version}
	var err error
	if in.objects, err = read(objects); err != nil {
		return fmt.Errorf("read the result of kustomize: %w", err)
	}
	for _, name := range o.examples {
		text, err := os.ReadFile(name)
		if err != nil {
			return fmt.Errorf("read an example: %w", err)
		}
		example, err := read(strings.NewReader(string(text)))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		in.examples = append(in.examples, example...)
	}
	if in.icon, err = os.ReadFile(o.icon); err != nil {
		return fmt.Errorf("read the icon: %w", err)
	}
	if in.scorecard, err = os.ReadFile(o.scorecard); err != nil {
		return fmt.Errorf("read the configuration of scorecard: %w", err)
	}
	out, err := generate(in)
	if err != nil {
		return err
	}
	return write(o.out, out)
}

// write writes files, and removes others from the directory bundle, unless that directory is
// not a bundle.
func write(directory string, out map[string][]byte) error {
	former := filepath.Join(directory, "bundle")
	if err := isBundle(former); err != nil {
		return err
	}
	if err := os.RemoveAll(former); err != nil {
		return fmt.Errorf("remove the old bundle: %w", err)
	}
	var errs []error
	for name, text := range out {
		path := filepath.Join(directory, name)
		errs = append(errs, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, text, 0o644))
	}
	return errors.Join(errs...)
}

// isBundle returns an error if a directory has anything that does not belong to a bundle.
func isBundle(directory string) error {
	entries, err := os.ReadDir(directory)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the old bundle: %w", err)
	}
	for _, entry := range entries {
		if !entry.IsDir() || !slices.Contains([]string{"manifests", "metadata", "tests"}, entry.Name()) {
			return fmt.Errorf("%s is not a bundle, because it has %s: write to another directory (BUNDLE_OUTPUT)", directory, entry.Name())
		}
	}
	return nil
}
