package manifest

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Stdin is the name of the standard input.
const Stdin = "-"

// Load reads files, directories and, for Stdin, stdin. Of a directory it reads files that end in
// .yaml, .yml or .json, except for kustomizations, which are no objects; it enters subdirectories
// only if recursive. Skipped are the subdirectories left out. A file that is named twice is read
// once.
func Load(names []string, recursive bool, stdin io.Reader) (files []File, skipped []string, err error) {
	l := &loader{recursive: recursive, seen: map[string]bool{}}
	for _, name := range names {
		if err := l.load(name, stdin); err != nil {
			return nil, nil, err
		}
	}
	return l.files, l.skipped, nil
}

type loader struct {
	recursive bool
	seen      map[string]bool
	files     []File
	skipped   []string
}

func (l *loader) load(name string, stdin io.Reader) error {
	if name == Stdin {
		text, err := io.ReadAll(stdin)
		if err != nil {
			return fmt.Errorf("read the standard input: %w", err)
		}
		l.files = append(l.files, File{Name: "standard input", Text: text})
		return nil
	}
	info, err := os.Stat(name)
	if err != nil {
		return err // names the file
	}
	if !info.IsDir() {
		return l.file(name)
	}
	before := len(l.files)
	if err := filepath.WalkDir(name, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != name && strings.HasPrefix(entry.Name(), "."):
			return filepath.SkipDir // .git and the like
		case entry.IsDir() && path != name && !l.recursive:
			l.skipped = append(l.skipped, path)
			return filepath.SkipDir
		case entry.IsDir() || !isManifest(path):
			return nil
		}
		return l.file(path)
	}); err != nil {
		return err
	}
	if len(l.files) == before {
		return fmt.Errorf("%s contains no file that ends in .yaml, .yml or .json%s", name, l.hint())
	}
	return nil
}

// hint says what to do about files that are not found.
func (l *loader) hint() string {
	if len(l.skipped) == 0 {
		return ""
	}
	return ", but directories, which --recursive reads"
}

// isManifest reports whether a file of a directory is to be read.
func isManifest(path string) bool {
	base, extension := filepath.Base(path), filepath.Ext(path)
	if strings.TrimSuffix(base, extension) == "kustomization" {
		return false
	}
	return slices.Contains([]string{".yaml", ".yml", ".json"}, extension)
}

func (l *loader) file(path string) error {
	path = filepath.Clean(path)
	if l.seen[path] {
		return nil
	}
	l.seen[path] = true
	text, err := os.ReadFile(path)
	if err != nil {
		return err // names the file
	}
	l.files = append(l.files, File{Name: path, Text: text})
	return nil
}
