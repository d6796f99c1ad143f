package output

import (
	"encoding/json"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Format is how a result is printed.
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
	return "", fmt.Errorf("--output %q: unknown; use table, yaml or json", text)
}

// version is the API version of what yaml and json print.
const version = "cli.nodeproxy.io/v1alpha1"

// Type identifies what a command prints as yaml and json.
func Type(kind string) metav1.TypeMeta { return metav1.TypeMeta{APIVersion: version, Kind: kind} }

// Report is the result of a command. Its fields are what yaml and json print.
type Report interface {
	// Table prints it in human-readable form.
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
