package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Stdin is the name of the standard input.
const Stdin = "-"

// Load reads files, directories and, for Stdin, stdin. In a directory it reads files that end in
// .yaml, .yml or .json, except for kustomizations, which are not objects; it enters subdirectories
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
	if len(l.files) > before {
		return nil
	}
	hint := ""
	if len(l.skipped) > 0 {
		hint = ", but directories, which --recursive reads"
	}
	return fmt.Errorf("%s contains no file that ends in .yaml, .yml or .json%s", name, hint)
}

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

// File is the content of a file.
type File struct {
	// Name is shown to users.
	Name string
	Text []byte
}

// place is the position of an object.
type place struct {
	file           string
	document, line int // each counted from 1
	item           int // in a list, counted from 1; 0: the document itself
}

// String returns the place in human-readable form.
func (p place) String() string {
	out := fmt.Sprintf("%s, document %d (line %d)", p.file, p.document, p.line)
	if p.item > 0 {
		out += fmt.Sprintf(", item %d", p.item)
	}
	return out
}

type document struct {
	line int // of the file, at which it begins
	text []byte
}

// documents splits a file. JSON may be several values one after the other. What begins like JSON
// and is not may be YAML.
func documents(f File) ([]document, error) {
	text := bytes.TrimPrefix(f.Text, []byte("\ufeff"))
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		out, err := jsonDocuments(text)
		if err == nil || filepath.Ext(f.Name) == ".json" {
			return out, err
		}
	}
	return yamlDocuments(text), nil
}

// jsonDocuments also returns what could be parsed before an error.
func jsonDocuments(text []byte) ([]document, error) {
	var out []document
	decoder := json.NewDecoder(bytes.NewReader(text))
	for {
		// Blank space before a value is not part of it.
		rest := text[decoder.InputOffset():]
		begin := len(text) - len(bytes.TrimLeft(rest, " \t\r\n"))
		line := 1 + bytes.Count(text[:begin], []byte("\n"))
		var raw json.RawMessage
		err := decoder.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, fmt.Errorf("document %d (line %d) is not JSON: %w", len(out)+1, line, err)
		}
		out = append(out, document{line: line, text: raw})
	}
}

// separator matches the lines at which a YAML document ends: the content of a value is indented, or it
// would not be YAML.
var separator = regexp.MustCompile(`(?m)^---(?:[ \t\r].*)?$`)

func yamlDocuments(text []byte) []document {
	var out []document
	begin, line := 0, 1
	end := func(at, next int) {
		if part := text[begin:at]; len(bytes.TrimSpace(part)) > 0 {
			out = append(out, document{line: line, text: part})
		}
		line += bytes.Count(text[begin:next], []byte("\n"))
		begin = next
	}
	for _, at := range separator.FindAllIndex(text, -1) {
		next := min(at[1]+1, len(text))
		if content := bytes.TrimSpace(text[at[0]+len("---") : at[1]]); len(content) > 0 && content[0] != '#' {
			next = at[0] // the document begins on the same line
		}
		end(at[0], next)
	}
	end(len(text), len(text))
	return out
}

// toJSON turns a document into JSON, null if it is empty.
func (d document) toJSON() ([]byte, error) {
	out, err := yaml.YAMLToJSONStrict(d.text)
	if err == nil {
		return out, nil
	}
	// Again, with the lines counted from the beginning of the file.
	shifted := append(bytes.Repeat([]byte("\n"), d.line-1), d.text...)
	if _, err := yaml.YAMLToJSONStrict(shifted); err != nil {
		return nil, err
	}
	return nil, err
}
