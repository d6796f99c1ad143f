package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// How the console shows fields in forms and lists.
const (
	asConditions = "urn:alm:descriptor:io.kubernetes.conditions"
	asUI         = "urn:alm:descriptor:com.tectonic.ui:"
)

// describer collects descriptors of fields.
type describer struct {
	inputs bool // forms ask for the fields
	out    []any
	errs   []error
}

// describe returns a descriptor of every field under spec or status of a kind.
func describe(kind, under string, schema *apiextensionsv1.JSONSchemaProps) ([]any, error) {
	d := &describer{inputs: under == "spec"}
	d.fields(schema, "")
	for i, err := range d.errs {
		d.errs[i] = fmt.Errorf("%s, %s.%w", kind, under, err)
	}
	return d.out, errors.Join(d.errs...)
}

func (d *describer) fields(schema *apiextensionsv1.JSONSchemaProps, prefix string) {
	for _, field := range slices.Sorted(maps.Keys(schema.Properties)) {
		props, path := schema.Properties[field], prefix+field
		if props.Description == "" {
			d.errs = append(d.errs, fmt.Errorf("%s has no description", path))
		}
		entry := map[string]any{"path": path, "displayName": title(field), "description": firstSentence(props.Description)}
		if shown := d.shownAs(path, &props); len(shown) > 0 {
			entry["x-descriptors"] = shown
		}
		d.out = append(d.out, entry)
		d.fields(&props, path+".")
		if props.Items != nil && props.Items.Schema != nil {
			d.fields(props.Items.Schema, path+"[0].")
		}
	}
}

// shownAs is how the console shows a field.
func (d *describer) shownAs(path string, props *apiextensionsv1.JSONSchemaProps) []any {
	if !d.inputs {
		if path == "conditions" {
			return []any{asConditions}
		}
		return nil
	}
	_, limits := props.Properties["limits"]
	_, requests := props.Properties["requests"]
	switch {
	case limits && requests:
		return []any{asUI + "resourceRequirements"}
	case len(props.Enum) > 0:
		var out []any
		for _, value := range props.Enum {
			out = append(out, asUI+"select:"+strings.Trim(string(value.Raw), `"`))
		}
		return out
	case props.XIntOrString || props.Type == "string":
		return []any{asUI + "text"}
	case props.Type == "integer":
		return []any{asUI + "number"}
	case props.Type == "boolean":
		return []any{asUI + "booleanSwitch"}
	}
	return nil
}

// spelling has words whose title differs from their spelling in field names.
var spelling = map[string]string{
	"api": "API", "arp": "ARP", "cidr": "CIDR", "cidrs": "CIDRs", "dir": "Directory", "fin": "FIN",
	"ip": "IP", "ips": "IPs", "ipvs": "IPVS", "max": "Maximum", "min": "Minimum", "tcp": "TCP", "udp": "UDP",
}

// title is a field's human-readable name: clientIPTimeoutSeconds becomes Client IP
// Timeout Seconds.
func title(field string) string {
	var out []string
	for _, word := range words(field) {
		if spelled, found := spelling[strings.ToLower(word)]; found {
			word = spelled
		}
		out = append(out, strings.ToUpper(word[:1])+word[1:])
	}
	return strings.Join(out, " ")
}

// words splits a name in camel case. Abbreviations are one word, with the s of
// their plural.
func words(field string) []string {
	letters := []rune(field)
	at := func(i int, is func(rune) bool) bool { return i >= 0 && i < len(letters) && is(letters[i]) }
	var out []string
	begin := 0
	for i := 1; i <= len(letters); i++ {
		plural := at(i+1, func(r rune) bool { return r == 's' }) && !at(i+2, unicode.IsLower)
		inside := at(i, unicode.IsLower) ||
			at(i-1, unicode.IsUpper) && at(i, unicode.IsUpper) && (!at(i+1, unicode.IsLower) || plural)
		if i == len(letters) || !inside {
			out = append(out, string(letters[begin:i]))
			begin = i
		}
	}
	return out
}

// firstSentence is the first one of a text, in one line. A new sentence begins
// with a capital letter, which keeps abbreviations together.
func firstSentence(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	for i := range text {
		rest, found := strings.CutPrefix(text[i:], ". ")
		if first, _ := utf8.DecodeRuneInString(rest); found && unicode.IsUpper(first) {
			return text[:i+1]
		}
	}
	return text
}
