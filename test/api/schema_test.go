package api_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// maxCRDSize keeps a CRD well below what kubectl apply can keep in its
// annotation (262,144 bytes).
const maxCRDSize = 200_000

// crd is one CustomResourceDefinition of config/crd/bases.
type crd struct {
	kind   string
	size   int
	schema apiextensionsv1.JSONSchemaProps
}

// field is one field of a schema.
type field struct {
	path     string // spec.ports.port: without the brackets of lists
	schema   apiextensionsv1.JSONSchemaProps
	required bool
	// ofKubernetes fields are inside a type of Kubernetes, which documents them.
	ofKubernetes bool
}

func (f field) segments() []string { return strings.Split(f.path, ".") }

func (f field) number() bool { return f.schema.Type == "integer" || f.schema.Type == "number" }

// kubernetesTypes are fields whose type belongs to Kubernetes.
var kubernetesTypes = []string{"status.conditions", "spec.agent.imagePullSecrets", "spec.agent.resources", "spec.agent.tolerations"}

func readCRDs(t *testing.T) map[string]crd {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(crdDirectory, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no CRDs in %s: %v", crdDirectory, err)
	}
	result := map[string]crd{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var definition apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &definition); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		kind := definition.Spec.Names.Kind
		result[kind] = crd{kind: kind, size: len(text), schema: *definition.Spec.Versions[0].Schema.OpenAPIV3Schema}
	}
	return result
}

// fields lists every field below one of the object's top fields, that field
// included.
func (c crd) fields(top string) []field {
	var out []field
	schema, ok := c.schema.Properties[top]
	if !ok {
		return nil
	}
	walk(&out, field{path: top, schema: schema, required: true})
	return out
}

func walk(out *[]field, f field) {
	*out = append(*out, f)
	inside := f.schema
	if inside.Items != nil && inside.Items.Schema != nil {
		inside = *inside.Items.Schema
	}
	names := make([]string, 0, len(inside.Properties))
	for name := range inside.Properties {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		walk(out, field{
			path:         f.path + "." + name,
			schema:       inside.Properties[name],
			required:     slices.Contains(inside.Required, name),
			ofKubernetes: f.ofKubernetes || slices.Contains(kubernetesTypes, f.path),
		})
	}
}

func TestEveryFieldIsDocumented(t *testing.T) {
	unit := regexp.MustCompile(`(?i)\b(number|counts?|how many|size|percent|bit|ports?|version|generation|verbosity)\b`)
	defaulted := regexp.MustCompile(`(?i)\b(default|required (with|when))\b`)
	total := 0
	for kind, c := range readCRDs(t) {
		for _, f := range append(c.fields("spec"), c.fields("status")...) {
			total++
			text := oneLine(f.schema.Description)
			where := "kubectl explain " + strings.ToLower(kind) + "." + f.path
			if text == "" {
				t.Errorf("%s: no description", where)
				continue
			}
			if f.ofKubernetes || !strings.Contains(f.path, ".") {
				continue
			}
			if !strings.Contains(text, "Source: ") {
				t.Errorf("%s does not state where the value comes from (Source: …): %s", where, text)
			}
			group := len(f.schema.Properties) > 0 // each field in it has a default
			if strings.HasPrefix(f.path, "spec.") && !f.required && !group && !defaulted.MatchString(text) {
				t.Errorf("%s does not state its default: %s", where, text)
			}
			switch {
			case strings.HasSuffix(f.path, "Milliseconds"):
				checkWord(t, where, text, "in milliseconds")
			case strings.HasSuffix(f.path, "Seconds"):
				checkWord(t, where, text, "in seconds")
			case f.number() && !unit.MatchString(text):
				t.Errorf("%s does not state what is counted: %s", where, text)
			}
			for _, value := range f.schema.Enum {
				checkWord(t, where, text, strings.Trim(string(value.Raw), `"`))
			}
		}
	}
	if total < 100 {
		t.Errorf("only %d fields seen: the walk misses some", total)
	}
}

// oneLine undoes the wrapping of lines.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

func checkWord(t *testing.T, where, text, word string) {
	t.Helper()
	if !strings.Contains(text, word) {
		t.Errorf("%s does not state %q: %s", where, word, text)
	}
}

// No default may come from a schema, and the objects that the controller
// renders carry nothing that costs the API server more than their structure.
func TestSchemasHaveNoDefaultsAndRenderedKindsNoRules(t *testing.T) {
	for kind, c := range readCRDs(t) {
		for _, f := range append(c.fields("spec"), c.fields("status")...) {
			// A toleration's or a resource claim's own defaults are Kubernetes'.
			status := f.path == "status" && f.schema.Default != nil && string(f.schema.Default.Raw) == `{"observedGeneration":-1}` // for kstatus
			if f.schema.Default != nil && !f.ofKubernetes && !status {
				t.Errorf("%s %s has a schema default: %s", kind, f.path, f.schema.Default.Raw)
			}
			rendered := kind == "NodeProxyRules" || kind == "ServiceProxyRules"
			if rendered && len(f.schema.XValidations) > 0 {
				t.Errorf("%s %s has CEL rules; rendered kinds have structural schemas only", kind, f.path)
			}
		}
	}
}

func TestCRDsAreSmall(t *testing.T) {
	crds := readCRDs(t)
	for _, kind := range []string{"NodeProxy", "NodeProxyPolicy", "NodeProxyRules", "ServiceProxyPolicy", "ServiceProxyRules"} {
		c, ok := crds[kind]
		switch {
		case !ok:
			t.Errorf("no CRD for %s", kind)
		case c.size >= maxCRDSize:
			t.Errorf("the CRD of %s has %d bytes, %d are allowed", kind, c.size, maxCRDSize)
		default:
			t.Logf("%s: %d bytes", kind, c.size)
		}
	}
}

// kubectl explain prints what the schemas contain.
func TestKubectlExplain(t *testing.T) {
	for path, want := range map[string][]string{
		"nodeproxies.spec.settings.masquerade.bit":             {"0 to 31", "Default: 14", "iptables.masqueradeBit", "Source:"},
		"nodeproxies.spec.settings.sync.verifyIntervalSeconds": {"in seconds", "Default: 60", "Source:"},
		"nodeproxyrules.status.lastSync.durationMilliseconds":  {"in milliseconds", "Source: agent"},
		"serviceproxyrules.spec.ports.endpoints.state":         {"Ready", "Terminating", "Source:"},
		"npp.spec.priority":                        {"the highest wins", "the lower name", "Default: 0", "Source:"},
		"npp.spec.rollout.progressDeadlineSeconds": {"in seconds", "Default: 600", "Source:"},
		"spp.spec.overrides.externalTrafficPolicy": {"Cluster or Local", "healthCheckNodePort", "Ineffective", "Source:"},
	} {
		out, code := kubectl(t, "explain", path)
		if code != 0 {
			t.Errorf("kubectl explain %s: exit code %d\n%s", path, code, out)
			continue
		}
		for _, text := range want {
			checkWord(t, "kubectl explain "+path, oneLine(out), text)
		}
	}
}
