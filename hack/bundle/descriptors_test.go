package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

func TestTitle(t *testing.T) {
	for field, want := range map[string]string{
		"mode":                   "Mode",
		"apiServer":              "API Server",
		"clusterCIDRs":           "Cluster CIDRs",
		"cidrs":                  "CIDRs",
		"ipvs":                   "IPVS",
		"strictARP":              "Strict ARP",
		"externalIPs":            "External IPs",
		"externalIPsPerNode":     "External IPs Per Node",
		"clientIPTimeoutSeconds": "Client IP Timeout Seconds",
		"tcpFinTimeoutSeconds":   "TCP FIN Timeout Seconds",
		"maxPerCore":             "Maximum Per Core",
		"stateDir":               "State Directory",
	} {
		if got := title(field); got != want {
			t.Errorf("%s: got %q, want %q", field, got, want)
		}
	}
}

func TestFirstSentence(t *testing.T) {
	for text, want := range map[string]string{
		"mode states how.\nDefault: none.":         "mode states how.",
		"one\n  sentence over\nlines":              "one sentence over lines",
		"limits, e.g. 10.0.0.0/8. Source: people.": "limits, e.g. 10.0.0.0/8.",
		"ends here.": "ends here.",
		"":           "",
	} {
		if got := firstSentence(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestDescribe(t *testing.T) {
	schema := &apiextensionsv1.JSONSchemaProps{}
	if err := yaml.Unmarshal([]byte(`
properties:
  mode: {type: string, enum: [A, B], description: mode is one of two. Default A.}
  paused: {type: boolean, description: paused.}
  count: {type: integer, description: count.}
  share: {x-kubernetes-int-or-string: true, description: share.}
  resources: {description: resources., properties: {limits: {description: limits.}, requests: {description: requests.}}}
  conditions: {type: array, description: conditions., items: {properties: {type: {type: string, description: type.}}}}
`), schema); err != nil {
		t.Fatal(err)
	}
	path := func(path, title, text string, shown ...any) map[string]any {
		out := map[string]any{"path": path, "displayName": title, "description": text}
		if len(shown) > 0 {
			out["x-descriptors"] = shown
		}
		return out
	}
	for under, want := range map[string][]any{
		"spec": {
			path("conditions", "Conditions", "conditions."),
			path("conditions[0].type", "Type", "type.", asUI+"text"),
			path("count", "Count", "count.", asUI+"number"),
			path("mode", "Mode", "mode is one of two.", asUI+"select:A", asUI+"select:B"),
			path("paused", "Paused", "paused.", asUI+"booleanSwitch"),
			path("resources", "Resources", "resources.", asUI+"resourceRequirements"),
			path("resources.limits", "Limits", "limits."),
			path("resources.requests", "Requests", "requests."),
			path("share", "Share", "share.", asUI+"text"),
		},
		"status": {
			path("conditions", "Conditions", "conditions.", asConditions),
			path("conditions[0].type", "Type", "type."),
			path("count", "Count", "count."),
			path("mode", "Mode", "mode is one of two."),
			path("paused", "Paused", "paused."),
			path("resources", "Resources", "resources."),
			path("resources.limits", "Limits", "limits."),
			path("resources.requests", "Requests", "requests."),
			path("share", "Share", "share."),
		},
	} {
		got, err := describe("Thing", under, schema)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", under, diff)
		}
	}
	schema.Properties["mode"] = apiextensionsv1.JSONSchemaProps{}
	if _, err := describe("Thing", "spec", schema); err == nil || err.Error() != "Thing, spec.mode has no description" {
		t.Errorf("without a description it prints %v", err)
	}
}
