package output

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Format is how a result is printed.
type Format string

// Formats of the flag -o.
const (
	Table Format = "table"
	Wide  Format = "wide" // a table with everything
	YAML  Format = "yaml"
	JSON  Format = "json"
)

// Parse reads the value of the flag -o.
func Parse(text string) (Format, error) {
	switch f := Format(text); f {
	case Table, Wide, YAML, JSON:
		return f, nil
	}
	return "", fmt.Errorf("--output %q: unknown; use table, wide, yaml or json", text)
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

// wide is implemented by reports whose tables leave something out.
type wide interface {
	// Wide prints everything.
	Wide(w io.Writer) error
}

// Print prints a report.
func Print(w io.Writer, f Format, r Report) error {
	switch f {
	case Table:
		return r.Table(w)
	case Wide:
		if screen, ok := w.(Screen); ok {
			screen.Width = 0
			w = screen
		}
		if all, ok := r.(wide); ok {
			return all.Wide(w)
		}
		return r.Table(w)
	case YAML, JSON:
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

// Printable quotes characters that would control a terminal, or hide text on it: others can
// write texts of objects, such as the status of a pod. Line breaks and tabs, which tables
// need, stay.
func Printable(text string) string {
	if strings.IndexFunc(text, controls) < 0 {
		return text
	}
	var out strings.Builder
	for _, r := range text {
		if controls(r) {
			out.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
			continue
		}
		out.WriteRune(r)
	}
	return out.String()
}

func controls(r rune) bool {
	return r != '\n' && r != '\t' && unicode.In(r, unicode.Cc, unicode.Cf)
}

// escaped quotes control characters that JSON permits.
func escaped(text []byte) []byte {
	var out []byte
	for _, r := range string(text) {
		if r >= 0x7f && r <= 0x9f {
			out = append(out, "\\u00"+strconv.FormatInt(int64(r), 16)...)
			continue
		}
		out = append(out, string(r)...)
	}
	return out
}
