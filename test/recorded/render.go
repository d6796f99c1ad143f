package recorded

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	sigsyaml "sigs.k8s.io/yaml"
)

// columns is how long a line may be, where values do not need a longer one.
const columns = 140

// indentation is how far an element is indented.
const indentation = 2

// render returns a document as YAML: whatever fits is on one line, so that a change to an
// object is a short diff.
func render(d document) ([]byte, error) {
	text, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	var root yaml.Node
	if err := yaml.Unmarshal(text, &root); err != nil { // JSON is YAML, and numbers stay as they are
		return nil, err
	}
	fields := root.Content[0]
	unquote(fields)
	values := map[string]*yaml.Node{}
	for i := 0; i < len(fields.Content); i += 2 {
		values[fields.Content[i].Value] = fields.Content[i+1]
	}
	out := &yaml.Node{Kind: yaml.MappingNode}
	for _, key := range []string{"parent", "now", "forbidden", "commands", "objects"} {
		value := values[key]
		if value == nil {
			continue
		}
		if value.Style = 0; key == "objects" {
			for i := 1; i < len(value.Content); i += 2 {
				objects := value.Content[i]
				objects.Style = 0 // an object each line
				for j := 1; j < len(objects.Content); j += 2 {
					lay(objects.Content[j], 2*indentation+len(objects.Content[j-1].Value)+len(": "), 3*indentation)
				}
			}
		}
		out.Content = append(out.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, value)
	}
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(indentation)
	e.CompactSeqIndent()
	if err := e.Encode(out); err != nil {
		return nil, err
	}
	if err := e.Close(); err != nil {
		return nil, err
	}
	var folded strings.Builder
	for line := range strings.Lines(b.String()) {
		folded.WriteString(fold(line))
	}
	return []byte(folded.String()), nil
}

// fold breaks a line that is too long within its string, at spaces, which a break stands
// for, or else after a comma, with a backslash.
func fold(line string) string {
	text := strings.TrimLeft(line, " -")
	indent := strings.Repeat(" ", len(line)-len(text)+indentation)
	begin := strings.Index(line, `"`) + 1
	if len(line) <= columns+len("\n") || begin == 0 {
		return line
	}
	var out strings.Builder
	for len(line) > columns+len("\n") {
		end := strings.LastIndex(line[begin:columns], " ") + begin
		rest, joint := end+1, "\n"
		if end < begin {
			end = strings.LastIndex(line[begin:columns], ",") + begin + 1
			rest, joint = end, "\\\n"
		}
		if end <= begin {
			break
		}
		out.WriteString(line[:end] + joint)
		line, begin = indent+line[rest:], len(indent)
	}
	return out.String() + line
}

// unquote drops the quotes of JSON, except around long strings, which fold needs, and what
// readers of some version of YAML would not take for a string, such as yes.
func unquote(node *yaml.Node) {
	var read any
	if node.Kind == yaml.ScalarNode && len(node.Value) < columns/2 && sigsyaml.Unmarshal([]byte(node.Value), &read) == nil && read == node.Value {
		node.Style &^= yaml.DoubleQuotedStyle
	}
	for _, child := range node.Content {
		unquote(child)
	}
}

// lay puts a value that begins in a column on one line if it fits, or else its elements
// below, indented by so much.
func lay(node *yaml.Node, column, indent int) {
	if column+width(node) <= columns || len(node.Content) == 0 {
		return
	}
	node.Style = 0
	for i, child := range node.Content {
		switch {
		case node.Kind == yaml.SequenceNode:
			lay(child, indent, indent+indentation)
		case i%2 == 1:
			lay(child, indent+len(node.Content[i-1].Value)+len(": "), indent+indentation)
		}
	}
}

// width is about how long a value is on one line.
func width(node *yaml.Node) int {
	w := len(node.Value) + len("{}")
	if node.Style&yaml.DoubleQuotedStyle != 0 {
		w = len(strconv.Quote(node.Value)) + len(", ")
	}
	for _, child := range node.Content {
		w += width(child)
	}
	return w
}
