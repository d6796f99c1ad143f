package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// small is a CRD with one of everything that is compared.
const small = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec:
  group: example.com
  names: {kind: Thing, listKind: ThingList, plural: things, singular: thing, shortNames: [th], categories: [all]}
  scope: Cluster
  versions:
  - {name: v1beta1, served: true, storage: false, schema: {openAPIV3Schema: {type: object, description: The first.}}}
  - name: v1
    served: true
    storage: true
    subresources: {status: {}, scale: {specReplicasPath: .spec.number, statusReplicasPath: .status.number}}
    additionalPrinterColumns:
    - {name: Mode, jsonPath: .spec.mode, type: string}
    selectableFields:
    - jsonPath: .spec.mode
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            required: [mode]
            x-kubernetes-validations:
            - {rule: "self.mode != ''", message: must be set}
            properties:
              mode: {type: string, description: What it does., enum: [A, B], default: A}
              number: {type: integer, minimum: 1, maximum: 10, multipleOf: 2}
              free: {type: integer}
              counted: {type: integer, format: int32}
              loose: {type: array}
              name: {type: string, minLength: 1, maxLength: 10, pattern: '^a', format: date-time}
              plain: {type: string, nullable: true}
              either: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}
              list:
                type: array
                minItems: 1
                maxItems: 4
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [key]
                items: {type: object, properties: {key: {type: string, maxLength: 5}}}
              labels: {type: object, minProperties: 1, maxProperties: 3, x-kubernetes-map-type: atomic, additionalProperties: {type: string, maxLength: 5}}
              anything: {type: object, x-kubernetes-preserve-unknown-fields: true}
  - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object}}}
`

func crdOf(t *testing.T, text string) map[string]*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict([]byte(text), crd); err != nil {
		t.Fatal(err)
	}
	return map[string]*apiextensionsv1.CustomResourceDefinition{crd.Name: crd}
}

// changed is small with a part replaced.
func changed(t *testing.T, old, text string) string {
	t.Helper()
	if strings.Count(small, old) != 1 {
		t.Fatalf("%q is there %d times", old, strings.Count(small, old))
	}
	return strings.Replace(small, old, text, 1)
}

// change is a change of a CRD, and what must be reported.
type change struct{ name, old, text, want string }

func incompatible() []change {
	return []change{
		{"group", "group: example.com", "group: example.org", "things.example.com: the group was example.com and is example.org"},
		{"kind", "kind: Thing,", "kind: Other,", "the kind was Thing and is Other"},
		{"kind of lists", "listKind: ThingList", "listKind: Things", "the kind of lists was ThingList and is Things"},
		{"plural", "plural: things", "plural: thingies", "the plural was things"},
		{"singular", "singular: thing,", "singular: one,", "the singular was thing"},
		{"scope", "scope: Cluster", "scope: Namespaced", "the scope was Cluster and is Namespaced"},
		{"short name", "shortNames: [th]", "shortNames: [ti]", "the short name th was removed"},
		{"category", "categories: [all]", "categories: []", "the category all was removed"},
		{"version", "  - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object}}}\n", "", "things.example.com v2: the version was removed"},
		{"conversion", "scope: Cluster", "scope: Cluster\n  conversion: {strategy: Webhook}", "things.example.com: the conversion between versions was None and is Webhook"},
		{
			"stored in an older version", "storage: false, schema: {openAPIV3Schema: {type: object, description: The first.}}}\n  - name: v1\n    served: true\n    storage: true",
			"storage: true, schema: {openAPIV3Schema: {type: object, description: The first.}}}\n  - name: v1\n    served: true\n    storage: false", "the storage version was v1 and is v1beta1",
		},
		{
			"names", "        properties:\n          spec:\n", "        properties:\n          metadata: {type: object, properties: {name: {type: string, maxLength: 5}}}\n          spec:\n",
			"v1, metadata.name: the maximum length is now 5 (was unlimited)",
		},
		{"not served", "name: v2, served: true", "name: v2, served: false", "v2: the version is no longer served"},
		{"no status", "status: {}, ", "", "v1: the status subresource was removed"},
		{"no scale", "scale: {specReplicasPath: .spec.number, statusReplicasPath: .status.number}", "", "the scale subresource was removed"},
		{"column", "name: Mode, jsonPath: .spec.mode", "name: Modes, jsonPath: .spec.mode", "the kubectl get column Mode was removed or changed"},
		{"column in wide only", "name: Mode,", "name: Mode, priority: 1,", "the kubectl get column Mode appears only with -o wide"},
		{"column shows something else", "jsonPath: .spec.mode, type: string", "jsonPath: .spec.name, type: string", "the kubectl get column Mode was removed or changed"},
		{"selectable field", "    selectableFields:\n    - jsonPath: .spec.mode\n", "", "objects can no longer be selected by .spec.mode"},
		{"no schema", "schema: {openAPIV3Schema: {type: object}}", "schema: {}", "v2: the schema was removed"},
		{"field gone", "              free: {type: integer}\n", "", "things.example.com v1, spec.free: the field was removed"},
		{"type", "free: {type: integer}", "free: {type: string}", "spec.free: the type was integer and is string"},
		{"number or text", "x-kubernetes-int-or-string: true", "x-kubernetes-int-or-string: false", "spec.either: x-kubernetes-int-or-string was true and is false"},
		{"null", "plain: {type: string, nullable: true}", "plain: {type: string}", "spec.plain: null is no longer allowed"},
		{"unknown fields", "anything: {type: object, x-kubernetes-preserve-unknown-fields: true}", "anything: {type: object}", "spec.anything: unknown fields are now dropped"},
		{"whole object", "anything: {type: object, ", "anything: {type: object, x-kubernetes-embedded-resource: true, ", "spec.anything: it must now be a complete object"},
		{"default", "default: A", "default: B", `spec.mode: the default was "A" and is "B"`},
		{"no default", "enum: [A, B], default: A", "enum: [A, B]", `spec.mode: the default was "A" and is none`},
		{"new default", "free: {type: integer}", "free: {type: integer, default: 3}", "spec.free: the default was none and is 3"},
		{"value gone", "enum: [A, B]", "enum: [A]", `spec.mode: the value "B" is no longer allowed`},
		{"only some values", "free: {type: integer}", "free: {type: integer, enum: [1]}", "spec.free: only some values are now allowed"},
		{"minimum", "minimum: 1", "minimum: 2", "spec.number: the minimum value is now 2 (was 1)"},
		{"new minimum", "free: {type: integer}", "free: {type: integer, minimum: 0}", "spec.free: the minimum value is now 0 (was unlimited)"},
		{"maximum of a format", "format: int32", "format: int32, maximum: 2147483646", "spec.counted: the maximum value is now 2.147483646e+09 (was 2.147483647e+09)"},
		{"minimum of a format", "format: int32", "format: int32, minimum: 0", "spec.counted: the minimum value is now 0 (was -2.147483648e+09)"},
		{"maximum", "maximum: 10", "maximum: 9", "spec.number: the maximum value is now 9 (was 10)"},
		{"exclusive minimum", "minimum: 1,", "minimum: 1, exclusiveMinimum: true,", "spec.number: the minimum itself"},
		{"exclusive maximum", "maximum: 10,", "maximum: 10, exclusiveMaximum: true,", "spec.number: the maximum itself"},
		{"multiples", "multipleOf: 2", "multipleOf: 3", "spec.number: only multiples of 3"},
		{"least length", "minLength: 1", "minLength: 2", "spec.name: the minimum length is now 2"},
		{"greatest length", "maxLength: 10", "maxLength: 9", "spec.name: the maximum length is now 9"},
		{"pattern", "pattern: '^a'", "pattern: '^b'", `spec.name: the pattern "^b" is new`},
		{"format", "format: date-time", "format: date", "spec.name: the format date is new"},
		{"least items", "minItems: 1", "minItems: 2", "spec.list: the minimum number of items is now 2"},
		{"most items", "maxItems: 4", "maxItems: 3", "spec.list: the maximum number of items is now 3"},
		{"unique items", "maxItems: 4", "maxItems: 4\n                uniqueItems: true", "spec.list: items must now be unique"},
		{"list type", "x-kubernetes-list-type: map", "x-kubernetes-list-type: atomic", "spec.list: the list type was map and is atomic"},
		{"list keys", "list-map-keys: [key]", "list-map-keys: [key, other]", "spec.list: the list keys"},
		{"items", "key: {type: string, maxLength: 5}", "key: {type: string, maxLength: 4}", "spec.list[].key: the maximum length is now 4"},
		{"new items", "loose: {type: array}", "loose: {type: array, items: {type: string}}", "spec.loose: its items now have a schema"},
		{"map type", "x-kubernetes-map-type: atomic", "x-kubernetes-map-type: granular", "spec.labels: the map type was atomic"},
		{"least entries", "minProperties: 1", "minProperties: 2", "spec.labels: the minimum number of entries is now 2"},
		{"most entries", "maxProperties: 3", "maxProperties: 2", "spec.labels: the maximum number of entries is now 2"},
		{"values of a map", "additionalProperties: {type: string, maxLength: 5}", "additionalProperties: {type: string, maxLength: 4}", "spec.labels{}: the maximum length is now 4"},
		{"no entries", ", additionalProperties: {type: string, maxLength: 5}", "", "spec.labels: unknown keys are no longer allowed"},
		{"new field where all were kept", "x-kubernetes-preserve-unknown-fields: true}", "x-kubernetes-preserve-unknown-fields: true, properties: {one: {type: string}}}", "spec.anything.one: it now has a schema"},
		{"new values where all were kept", "x-kubernetes-preserve-unknown-fields: true}", "x-kubernetes-preserve-unknown-fields: true, additionalProperties: {type: string}}", "spec.anything: its values now have a schema"},
		{"new field of a map", "x-kubernetes-map-type: atomic,", "x-kubernetes-map-type: atomic, properties: {one: {type: integer}},", "spec.labels.one: the type was string and is integer"},
		{"required", "required: [mode]", "required: [mode, free]", "spec.free: the field is now required"},
		{"new and required", "required: [mode]", "required: [mode, fresh]", "spec.fresh: the field is now required"},
		{"rule", "self.mode != ''", "self.mode != 'A'", `spec: the rule "self.mode != 'A'" is new`},
		{"alternatives", "anyOf: [{type: integer}, {type: string}]", "anyOf: [{type: integer}]", "spec.either: anyOf has changed"},
		{"not", "free: {type: integer}", "free: {type: integer, not: {enum: [1]}}", "spec.free: not has changed"},
	}
}

func TestIncompatibleChangesAreNamed(t *testing.T) {
	for _, c := range incompatible() {
		t.Run(c.name, func(t *testing.T) {
			got := compare(crdOf(t, small), crdOf(t, changed(t, c.old, c.text)))
			if !slices.ContainsFunc(got, func(text string) bool { return strings.Contains(text, c.want) }) {
				t.Errorf("got\n%s\nwant %s", strings.Join(got, "\n"), c.want)
			}
			if len(got) > 1 {
				t.Errorf("got more:\n%s", strings.Join(got, "\n"))
			}
		})
	}
	if got := compare(crdOf(t, small), nil); len(got) != 1 || !strings.Contains(got[0], "the CRD was removed") {
		t.Errorf("without the CRD it prints %q", got)
	}
}

func TestCompatibleChangesPass(t *testing.T) {
	const rule = "            x-kubernetes-validations:\n            - {rule: \"self.mode != ''\", message: must be set}\n"
	for _, c := range []change{
		{name: "nothing", old: "group: example.com", text: "group: example.com"},
		{name: "new optional field", old: "free: {type: integer}", text: "free: {type: integer}\n              fresh: {type: string, default: x, enum: [x], maxLength: 1}"},
		{name: "new field that is required and has a default", old: "required: [mode]\n" + rule + "            properties:\n", text: "required: [mode, fresh]\n" + rule + "            properties:\n              fresh: {type: string, default: x}\n"},
		{name: "required no more", old: "            required: [mode]\n", text: ""},
		{name: "description", old: "What it does.", text: "What it does not."},
		{name: "new value", old: "enum: [A, B]", text: "enum: [A, B, C]"},
		{name: "all values", old: "enum: [A, B], ", text: ""},
		{name: "minimum", old: "minimum: 1", text: "minimum: 0"},
		{name: "bounds of a format", old: "format: int32", text: "format: int32, minimum: -2147483648, maximum: 2147483647"},
		{name: "new length of none", old: "plain: {type: string,", text: "plain: {type: string, minLength: 0,"},
		{name: "new number of items of none", old: "loose: {type: array}", text: "loose: {type: array, minItems: 0}"},
		{name: "new number of entries of none", old: "anything: {type: object,", text: "anything: {type: object, minProperties: 0,"},
		{name: "no maximum", old: "maximum: 10, ", text: ""},
		{name: "longer", old: "maxLength: 10", text: "maxLength: 11"},
		{name: "no pattern", old: "pattern: '^a', ", text: ""},
		{name: "no format", old: ", format: date-time", text: ""},
		{name: "more items", old: "maxItems: 4", text: "maxItems: 5"},
		{name: "null", old: "free: {type: integer}", text: "free: {type: integer, nullable: true}"},
		{name: "message of a rule", old: "message: must be set", text: "message: must not be empty"},
		{name: "no rule", old: rule, text: ""},
		{name: "no alternatives", old: ", anyOf: [{type: integer}, {type: string}]", text: ""},
		{name: "column", old: "    selectableFields:", text: "    - {name: More, jsonPath: .spec.free, type: integer}\n    selectableFields:"},
		{name: "explicit conversion", old: "scope: Cluster", text: "scope: Cluster\n  conversion: {strategy: None}"},
		{name: "stored in a newer version", old: "  - name: v1\n    served: true\n    storage: true", text: "  - {name: v3, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}\n  - name: v1\n    served: true\n    storage: false"},
		{name: "new field of a map like the others", old: "x-kubernetes-map-type: atomic,", text: "x-kubernetes-map-type: atomic, properties: {one: {type: string}},"},
		{name: "short name", old: "shortNames: [th]", text: "shortNames: [th, ti]"},
		{name: "version", old: "  - {name: v2,", text: "  - {name: v3, served: true, storage: false, schema: {openAPIV3Schema: {type: object}}}\n  - {name: v2,"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := compare(crdOf(t, small), crdOf(t, changed(t, c.old, c.text))); len(got) > 0 {
				t.Errorf("it prints\n%s", strings.Join(got, "\n"))
			}
		})
	}
	if got := compare(nil, crdOf(t, small)); len(got) > 0 {
		t.Errorf("of a new CRD it prints %q", got)
	}
}

func TestDirectories(t *testing.T) {
	released, now := t.TempDir(), t.TempDir()
	if _, err := run(released, now); err == nil || !strings.Contains(err.Error(), "has no CRDs") {
		t.Errorf("of an empty directory it prints %v", err)
	}
	write := func(directory, name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(released, "thing.yaml", small)
	write(now, "thing.yaml", changed(t, "default: A", "default: B"))
	const sentence = `things.example.com v1, spec.mode: the default was "A" and is "B", so objects without the field change their meaning.`
	check := func(what string, want ...string) {
		t.Helper()
		got, err := run(released, now)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	check("a changed default", sentence)
	write(released, "accepted.txt", "# the reason\n\n"+sentence+"\n")
	check("accepted")
	write(now, "thing.yaml", small)
	check("accepted in vain", "accepted.txt accepts a change that does not exist: "+sentence)
	write(now, "thing.yaml", "not YAML: [")
	if _, err := run(released, now); err == nil || !strings.Contains(err.Error(), "thing.yaml") {
		t.Errorf("of what is no CRD it prints %v", err)
	}
}
