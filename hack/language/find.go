package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strings"
	"unicode"
)

// finding is a use of a phrase.
type finding struct {
	file string
	line int
	rule rule
	// text is the line, or the identifier.
	text string
}

// String formats a finding so that an editor can jump to it.
func (f finding) String() string {
	return fmt.Sprintf("%s:%d: %q; write instead: %s\n\t%s", f.file, f.line, f.rule.name, f.rule.instead, f.text)
}

// readable reports whether files of this kind are checked.
func readable(file string) bool {
	switch path.Ext(file) {
	case ".go", ".md", ".yaml", ".yml", ".sh", ".tpl":
		return true
	}
	return path.Base(file) == "Makefile" || strings.HasSuffix(file, "Dockerfile")
}

// systemError is the text of ECONNREFUSED, the only use of its second word.
const systemError = "connection refused"

// find returns the uses of the phrases in a file, by line.
func find(file, content string, all []rule) ([]finding, error) {
	content = strings.ReplaceAll(content, systemError, strings.Repeat("-", len(systemError)))
	var found []finding
	if path.Ext(file) != ".go" {
		found = inText(file, content, 1, all)
	} else {
		var err error
		if found, err = inGo(file, content, all); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(found, func(a, b finding) int { return a.line - b.line })
	return found, nil
}

// inText searches prose that begins at line first of its file.
func inText(file, text string, first int, all []rule) []finding {
	var found []finding
	for _, r := range all {
		for _, at := range r.text.FindAllStringIndex(text, -1) {
			found = append(found, finding{
				file: file, line: first + strings.Count(text[:at[0]], "\n"), rule: r, text: lineAt(text, at[0]),
			})
		}
	}
	return found
}

// lineAt is the line around an offset.
func lineAt(text string, offset int) string {
	start := strings.LastIndexByte(text[:offset], '\n') + 1
	line, _, _ := strings.Cut(text[start:], "\n")
	return strings.TrimSpace(line)
}

func inGo(file, content string, all []rule) ([]finding, error) {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, file, content, parser.ParseComments)
	if err != nil {
		return nil, fmt.Errorf("parsing: %w", err)
	}
	raw := func(n ast.Node) string {
		return content[files.Position(n.Pos()).Offset:files.Position(n.End()).Offset]
	}
	line := func(n ast.Node) int { return files.Position(n.Pos()).Line }
	var found []finding
	for _, group := range parsed.Comments {
		found = append(found, inText(file, raw(group), line(group), all)...)
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				found = append(found, inText(file, raw(n), line(n), all)...)
			}
		case *ast.Ident:
			split := words(n.Name)
			for _, r := range all {
				if r.words.MatchString(split) {
					found = append(found, finding{file: file, line: line(n), rule: r, text: n.Name})
				}
			}
		}
		return true
	})
	return found, nil
}

// words splits an identifier: lastGoodSet is "last good set".
func words(identifier string) string {
	runes := []rune(identifier)
	var b strings.Builder
	for i, r := range runes {
		switch {
		case r == '_':
			r = ' '
		case i > 0 && unicode.IsUpper(r) &&
			(!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])):
			b.WriteByte(' ')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
