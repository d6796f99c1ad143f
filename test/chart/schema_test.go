package chart_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the schema of nodeProxy.spec to values.schema.json")

// schemaOf turns the schema of a CRD's field into one for values: what it does not list is denied.
// The API server checks the rest, such as CEL rules.
func schemaOf(field map[string]any) map[string]any {
	out := map[string]any{}
	for key, value := range field {
		switch key {
		case "type", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "required", "anyOf":
			out[key] = value
		case "items", "additionalProperties":
			if of, ok := value.(map[string]any); ok {
				value = schemaOf(of)
			}
			out[key] = value
		case "properties":
			properties := map[string]any{}
			for name, of := range value.(map[string]any) {
				properties[name] = schemaOf(of.(map[string]any))
			}
			out[key], out["additionalProperties"] = properties, false
		case "x-kubernetes-int-or-string":
			out["type"] = []any{"integer", "string"}
		}
	}
	return out
}

// TestSchema compares the schema of nodeProxy.spec with the CRD's.
func TestSchema(t *testing.T) {
	text, err := os.ReadFile(path("config", "crd", "bases", "nodeproxy.io_nodeproxies.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	crd := map[string]any{}
	if err := yaml.Unmarshal(text, &crd); err != nil {
		t.Fatal(err)
	}
	versions, _, err := unstructured.NestedSlice(crd, "spec", "versions")
	if err != nil || len(versions) != 1 {
		t.Fatalf("%d versions, %v", len(versions), err)
	}
	spec, _, err := unstructured.NestedMap(versions[0].(map[string]any), "schema", "openAPIV3Schema", "properties", "spec")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(chartDirectory, "values.schema.json")
	now, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	schema := map[string]any{}
	if err := json.Unmarshal(now, &schema); err != nil {
		t.Fatal(err)
	}
	if err := unstructured.SetNestedMap(schema, schemaOf(spec), "properties", "nodeProxy", "properties", "spec"); err != nil {
		t.Fatal(err)
	}
	want := &bytes.Buffer{}
	encoder := json.NewEncoder(want)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(schema); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if !bytes.Equal(now, want.Bytes()) {
		t.Error("values.schema.json does not have the schema of the CRD: run go test ./test/chart -run TestSchema -update")
	}
}

func TestSchemaDenies(t *testing.T) {
	for set, want := range map[string]string{
		"images.tag=v1":                              "additional properties 'images' not allowed",
		"image.tga=v1":                               "additional properties 'tga' not allowed",
		"image.tag=1":                                "at '/image/tag': got number, want string",
		"apiServers={192.0.2.10}":                    "at '/apiServers/0'",
		"controller.replicas=0":                      "at '/controller/replicas': minimum: got 0, want 1",
		"controller=null":                            "missing property 'controller'",
		"nodeProxy.spec.mode=IPVS":                   "additional properties 'mode' not allowed",
		"nodeProxy.spec.settings.mode=ipvs":          "at '/nodeProxy/spec/settings/mode': value must be one of",
		"nodeProxy.spec.agent.resources.request=1":   "additional properties 'request' not allowed",
		"nodeProxy.spec.settings.sync.interval=1":    "additional properties 'interval' not allowed",
		"nodeProxy.spec.rollout.maxUnavailable=true": "at '/nodeProxy/spec/rollout/maxUnavailable'",
	} {
		t.Run(set, func(t *testing.T) {
			if _, err := try(t.Context(), nil, path("hack", "tool.sh"), "helm", "template", "nodeproxy", chartDirectory, "--set", set); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("want %q: %v", want, err)
			}
		})
	}
	helm(t, "template", "nodeproxy", chartDirectory, "--set", "nodeProxy.spec.rollout.maxUnavailable=10%,nodeProxy.spec.agent.resources.requests.cpu=1,nodeProxy.spec.agent.nodeSelector.a=b")
}
