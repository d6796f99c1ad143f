package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: crdcompat RELEASED NOW")
		os.Exit(2)
	}
	found, err := run(os.Args[1], os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, "crdcompat:", err)
		os.Exit(2)
	}
	for _, text := range found {
		fmt.Println(text)
	}
	if len(found) > 0 {
		os.Exit(1)
	}
}

// run compares the CRDs of two directories.
func run(released, now string) ([]string, error) {
	old, err := read(released)
	if err != nil {
		return nil, err
	}
	present, err := read(now)
	if err != nil {
		return nil, err
	}
	accepted, err := readAccepted(filepath.Join(released, "accepted.txt"))
	if err != nil {
		return nil, err
	}
	return judge(compare(old, present), accepted), nil
}

// readAccepted returns the lines of a file, if it exists, that are neither empty nor comments.
func readAccepted(file string) ([]string, error) {
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the accepted changes: %w", err)
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}
	return out, nil
}

// judge removes accepted changes, and reports lines of accepted.txt that match none.
func judge(found, accepted []string) []string {
	out := missing(found, accepted)
	for _, line := range missing(accepted, found) {
		out = append(out, fmt.Sprintf("accepted.txt accepts a change that does not exist: %s", line))
	}
	return out
}

// read returns the CRDs of a directory by name.
func read(directory string) (map[string]*apiextensionsv1.CustomResourceDefinition, error) {
	files, err := filepath.Glob(filepath.Join(directory, "*.yaml"))
	if err != nil {
		return nil, fmt.Errorf("find CRDs: %w", err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s has no CRDs", directory)
	}
	out := map[string]*apiextensionsv1.CustomResourceDefinition{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err // names the file
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(text, crd); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out[crd.Name] = crd
	}
	return out, nil
}
