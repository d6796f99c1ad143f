package kubeproxy

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// Write prints the objects, with comments at the fields that they concern.
func (r *Result) Write(w io.Writer) error {
	var out bytes.Buffer
	for i := range r.documents {
		if i > 0 {
			out.WriteString("---\n")
		}
		if err := r.documents[i].write(&out); err != nil {
			return fmt.Errorf("print %s %s: %w", r.documents[i].Kind, r.documents[i].Metadata.Name, err)
		}
	}
	_, err := w.Write(out.Bytes())
	return err
}

func (d *document) write(w io.Writer) error {
	content, err := yaml.Marshal(d)
	if err != nil {
		return err
	}
	var root yamlv3.Node
	if err := yamlv3.Unmarshal(content, &root); err != nil {
		return err
	}
	for _, n := range d.notes {
		at, exact := keyAtPath(root.Content[0], "spec."+n.at)
		if !exact && !n.lost {
			continue // about a setting that a policy does not override
		}
		at.HeadComment = strings.TrimPrefix(at.HeadComment+"\n"+comment(n.text), "\n")
	}
	if _, err := io.WriteString(w, comment(d.comment)+"\n"); err != nil {
		return err
	}
	encoder := yamlv3.NewEncoder(w)
	encoder.SetIndent(2)
	encoder.CompactSeqIndent()
	if err := encoder.Encode(&root); err != nil {
		return err
	}
	return encoder.Close()
}

// keyAtPath returns the key of a field. If there is none, it returns that of the field around
// it, but within spec.
func keyAtPath(in *yamlv3.Node, path string) (found *yamlv3.Node, exact bool) {
	for depth, name := range strings.Split(path, ".") {
		key, value := entry(in, name)
		if key == nil && depth == 1 {
			key, _ = entry(in, "settings")
			return key, false
		}
		if key == nil {
			return found, false
		}
		found, in = key, value
	}
	return found, true
}

// entry returns an entry of a mapping; nil: there is none.
func entry(in *yamlv3.Node, name string) (key, value *yamlv3.Node) {
	for i := 0; i+1 < len(in.Content); i += 2 {
		if in.Content[i].Value == name {
			return in.Content[i], in.Content[i+1]
		}
	}
	return nil, nil
}

// columns is the width of comments, if their words permit.
const columns = 96

// comment returns a text as lines of a comment. Line breaks, which would end it, cannot occur.
func comment(text string) string {
	var lines []string
	line := "#"
	for word := range strings.FieldsSeq(output.Printable(text)) {
		if len(line)+1+len(word) > columns && line != "#" {
			lines = append(lines, line)
			line = "#"
		}
		line += " " + word
	}
	return strings.Join(append(lines, line), "\n")
}
