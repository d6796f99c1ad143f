package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

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

// document is one of a file.
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
		// Blank space before a value is no part of it.
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

// yamlDocuments splits at lines that begin with three dashes, where a document always ends: the
// content of a value is indented, or it would not be YAML.
func yamlDocuments(text []byte) []document {
	var out []document
	begin, first, line := 0, 1, 1
	end := func(at, next, nextLine int) {
		if part := text[begin:at]; len(bytes.TrimSpace(part)) > 0 {
			out = append(out, document{line: first, text: part})
		}
		begin, first = next, nextLine
	}
	for at := 0; at < len(text); line++ {
		next := len(text)
		if i := bytes.IndexByte(text[at:], '\n'); i >= 0 {
			next = at + i + 1
		}
		if rest, found := bytes.CutPrefix(text[at:next], []byte("---")); found && (len(rest) == 0 || bytes.IndexByte(rest[:1], ' ') == 0 || bytes.ContainsAny(rest[:1], "\t\r\n")) {
			if content := bytes.TrimSpace(rest); len(content) > 0 && content[0] != '#' {
				end(at, at, line) // the document begins on the same line
			} else {
				end(at, next, line+1)
			}
		}
		at = next
	}
	end(len(text), len(text), line)
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
