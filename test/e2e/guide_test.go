package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// block is a code block of a document.
type block struct {
	language string // empty: commands for a shell
	lines    []string
}

// fence is where a code block begins, alone in its line or as an item of a list.
var fence = regexp.MustCompile("^( *(?:[0-9]+\\. +|- +)?)```(.*)$")

// blocksBelow are the code blocks of a section of a Markdown document: those
// between a heading and the next one of the same or a higher rank. What the
// document indents, as in lists, is not indented here.
func blocksBelow(text, heading string) []block {
	var blocks []block
	var open *block
	rank := strings.Repeat("#", strings.IndexByte(heading, ' '))
	below, indent := false, ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		begins := fence.FindStringSubmatch(line)
		switch {
		case open == nil && begins != nil:
			indent = strings.Repeat(" ", len(begins[1]))
			open = &block{language: begins[2]}
		case open != nil && strings.TrimLeft(line, " ") == "```":
			if below {
				blocks = append(blocks, *open)
			}
			open = nil
		case open != nil:
			open.lines = append(open.lines, strings.TrimPrefix(line, indent))
		case line == heading:
			below = true
		case below && strings.HasPrefix(line, "#") && strings.HasPrefix(rank, line[:strings.IndexByte(line+" ", ' ')]):
			return blocks
		}
	}
	return blocks
}

func TestBlocksBelow(t *testing.T) {
	const text = "# Doc\n```\nno\n```\n## One\n1. text\n\n   ```\n   kubectl a \\\n     -b\n   ```\n   ```yaml\n   a:\n     b: 1\n   ```\n" +
		"### Part\n```\n# no heading\n```\n2. ```\n   item\n   ```\n## Two\n```\nno\n```\n"
	got := blocksBelow(text, "## One")
	want := []block{{"", []string{"kubectl a \\", "  -b"}}, {"yaml", []string{"a:", "  b: 1"}}, {"", []string{"# no heading"}}, {"", []string{"item"}}}
	if !slices.EqualFunc(got, want, func(a, b block) bool { return a.language == b.language && slices.Equal(a.lines, b.lines) }) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := blocksBelow(text, "## Three"); got != nil {
		t.Errorf("a heading that is not there has %q", got)
	}
}

// guide follows a document as an administrator does: all commands of a section,
// one after the other, in a directory with the files that the document mentions.
type guide struct {
	document  string // below the root of this repository
	directory string
	// names are what stands in the document, and in its place here.
	names *strings.Replacer
}

// follow runs the commands of a section, and returns what each of its blocks has
// printed. A block of YAML becomes the file of its kind: that of a NodeProxy
// nodeproxy.yaml.
func (g guide) follow(r *run, heading string) []string {
	r.Helper()
	text, err := os.ReadFile(filepath.Join(r.root, g.document))
	r.must(err)
	blocks := blocksBelow(string(text), heading)
	if len(blocks) == 0 {
		r.Fatalf("%s: no code below %q", g.document, heading)
	}
	var printed []string
	for _, b := range blocks {
		text := strings.Join(b.lines, "\n") + "\n"
		if g.names != nil {
			text = g.names.Replace(text)
		}
		switch b.language {
		case "":
			printed = append(printed, g.shell(r, text))
		case "yaml":
			_, kind, _ := strings.Cut(text, "\nkind: ")
			kind, _, _ = strings.Cut(kind, "\n")
			r.must(os.WriteFile(filepath.Join(g.directory, strings.ToLower(kind)+".yaml"), []byte(text), 0o600))
		default:
			r.Fatalf("%s: below %q is a block in %q, which the test cannot run", g.document, heading, b.language)
		}
	}
	return printed
}

// step runs one block of a section, which has to be commands, counted from 0, and
// returns what it has printed.
func (g guide) step(r *run, heading string, number int) string {
	r.Helper()
	text, err := os.ReadFile(filepath.Join(r.root, g.document))
	r.must(err)
	blocks := blocksBelow(string(text), heading)
	if number >= len(blocks) || blocks[number].language != "" {
		r.Fatalf("%s: below %q, block %d is not commands", g.document, heading, number)
	}
	commands := strings.Join(blocks[number].lines, "\n")
	if g.names != nil {
		commands = g.names.Replace(commands)
	}
	return g.shell(r, commands)
}

// shell runs commands, and fails with the first that fails.
func (g guide) shell(r *run, commands string) string {
	r.Helper()
	command := exec.CommandContext(r.ctx, "bash", "-euxo", "pipefail", "-c", commands)
	command.Dir = g.directory
	command.Env = append(os.Environ(), "KUBECONFIG="+r.cluster.Kubeconfig(), "PATH="+r.temp+":"+r.cluster.Assets()+":"+os.Getenv("PATH"))
	var out, notes strings.Builder
	command.Stdout, command.Stderr = &out, &notes
	if err := command.Run(); err != nil {
		r.Fatalf("%s: %v; its commands and what they printed:\n%s%s", g.document, err, notes.String(), out.String())
	}
	return strings.TrimSpace(out.String())
}
