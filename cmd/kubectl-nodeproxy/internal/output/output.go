// Package output prints what the commands of the plugin have found out.
package output

import (
	"encoding/json"
	"fmt"
	"io"

	"sigs.k8s.io/yaml"
)

// Format is how something is printed.
type Format string

// Formats of the flag -o.
const (
	Table Format = "table"
	YAML  Format = "yaml"
	JSON  Format = "json"
)

// Parse reads the value of the flag -o.
func Parse(text string) (Format, error) {
	switch f := Format(text); f {
	case Table, YAML, JSON:
		return f, nil
	}
	return "", fmt.Errorf("--output %q: not known; give table, yaml or json", text)
}

// Report is what a command has found out. Its fields are what yaml and json print.
type Report interface {
	// Table prints it for people.
	Table(w io.Writer) error
}

// Print prints a report.
func Print(w io.Writer, f Format, r Report) error {
	if f == Table {
		return r.Table(w)
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	text = escaped(text)
	if f == YAML {
		if text, err = yaml.JSONToYAML(text); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	} else {
		text = append(text, '\n')
	}
	_, err = w.Write(text)
	return err
}
