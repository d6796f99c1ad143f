package main

import (
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// checkStatic makes sure that a program needs nothing but a kernel.
func checkStatic(program string) error {
	file, err := elf.Open(program)
	if err != nil {
		return fmt.Errorf("read the program %s: %w", program, err)
	}
	defer file.Close()
	for _, part := range file.Progs {
		if part.Type == elf.PT_INTERP {
			return fmt.Errorf("%s is not a static program; build it with CGO_ENABLED=0", program)
		}
	}
	return nil
}

// checkLibraries makes sure that each program and library of a root file system
// finds the libraries that it needs: its packages were unpacked, not installed, so no
// package manager has checked that the list is complete.
func checkLibraries(root string) error {
	present, needed := map[string]bool{}, map[string]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if strings.Contains(entry.Name(), ".so") && isLibraryDirectory(root, filepath.Dir(path)) {
			present[entry.Name()] = true
		}
		if !entry.Type().IsRegular() {
			return nil
		}
		libraries, err := neededBy(path)
		for _, one := range libraries {
			needed[one] = strings.TrimPrefix(path, root)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("look at the root file system: %w", err)
	}
	var missing []string
	for library, by := range needed {
		if !present[library] {
			missing = append(missing, fmt.Sprintf("%s, for %s", library, by))
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return fmt.Errorf("no package has these libraries: %s; add those that have them to hack/images/debian-root.sh", strings.Join(missing, "; "))
	}
	return nil
}

// isLibraryDirectory reports whether the loader looks there: /lib64, /lib and
// /usr/lib with the architecture's name.
func isLibraryDirectory(root, directory string) bool {
	below, _ := filepath.Rel(root, directory)
	below = strings.TrimPrefix(below, "usr/")
	return below == "lib" || below == "lib64" || filepath.Dir(below) == "lib"
}

// neededBy returns the libraries that a file asks for; none if it is not a
// program or library.
func neededBy(path string) ([]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	magic := make([]byte, len(elf.ELFMAG))
	if _, err := file.ReadAt(magic, 0); err != nil || string(magic) != elf.ELFMAG {
		return nil, nil
	}
	object, err := elf.NewFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return object.ImportedLibraries()
}
