package v1alpha1

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// TestDefaults pins the defaults: settingsRevision is a hash of the differences from them, so
// a changed default would start a rollout in every cluster.
func TestDefaults(t *testing.T) {
	const want = `{"mode":"IPTables","fallback":"None","enforcement":"Enforce","detectLocal":{"mode":"None"},` +
		`"nodePorts":{"addressMode":"All","localhost":"Enabled"},"masquerade":{"all":"Disabled","bit":14},` +
		`"ipvs":{"scheduler":"rr","strictARP":"Disabled","tcpTimeoutSeconds":0,"tcpFinTimeoutSeconds":0,"udpTimeoutSeconds":0},` +
		`"userspace":{"connectTimeoutMilliseconds":250,"maxConnections":100000,"maxConnectionsPerPort":50000},` +
		`"sync":{"minIntervalMilliseconds":250,"verifyIntervalSeconds":60},` +
		`"conntrack":{"maxPerCore":32768,"min":131072,"tcpEstablishedTimeoutSeconds":86400,"tcpCloseWaitTimeoutSeconds":3600,` +
		`"udpTimeoutSeconds":0,"udpStreamTimeoutSeconds":0,"tcpBeLiberal":"Disabled"}}`
	for name, s := range map[string]*ProxySettings{
		"nothing": nil, "empty": {},
		"empty groups": {NodePorts: &NodePortSettings{}, Masquerade: &MasqueradeSettings{}, IPVS: &IPVSSettings{}, Userspace: &UserspaceSettings{}, Sync: &SyncSettings{}, Conntrack: &ConntrackSettings{}},
	} {
		got, err := json.Marshal(CompleteSettings(s))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestCompleteSettingsKeepsWhatIsGiven fills every field: none may be replaced by a default, or
// shared.
func TestCompleteSettingsKeepsWhatIsGiven(t *testing.T) {
	given := &ProxySettings{}
	fill(reflect.ValueOf(given).Elem())
	got := CompleteSettings(given)
	if diff := cmp.Diff(given, got); diff != "" {
		t.Errorf("(-given +completed):\n%s", diff)
	}
	for _, path := range shared(reflect.ValueOf(given).Elem(), reflect.ValueOf(got).Elem(), "settings") {
		t.Errorf("%s is shared with what was given", path)
	}
	zero := &ProxySettings{Masquerade: &MasqueradeSettings{Bit: new(int32)}, Sync: &SyncSettings{MinIntervalMilliseconds: new(int32)}}
	if got := CompleteSettings(zero); *got.Masquerade.Bit != 0 || *got.Sync.MinIntervalMilliseconds != 0 {
		t.Errorf("a zero that was given is replaced: bit %d, interval %d", *got.Masquerade.Bit, *got.Sync.MinIntervalMilliseconds)
	}
}

// TestDecodingSetsNoDefaults: clients see what is stored.
func TestDecodingSetsNoDefaults(t *testing.T) {
	rules := &NodeProxyRules{Spec: NodeProxyRulesSpec{Settings: ProxySettings{NodePorts: &NodePortSettings{}}}}
	before := rules.DeepCopy()
	scheme(t).Default(rules)
	if diff := cmp.Diff(before, rules); diff != "" {
		t.Errorf("(-stored +decoded):\n%s", diff)
	}
}

// TestDefaultsAreThoseDocumented compares the defaults with the CRD descriptions.
func TestDefaultsAreThoseDocumented(t *testing.T) {
	text, err := json.Marshal(CompleteSettings(nil))
	if err != nil {
		t.Fatal(err)
	}
	var defaults map[string]any
	if err := json.Unmarshal(text, &defaults); err != nil {
		t.Fatal(err)
	}
	spec := crds(t)["NodeProxy"].Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	if compareDocumented(t, "settings", spec.Properties["settings"], defaults) == 0 {
		t.Error("no field was compared")
	}
}

func compareDocumented(t *testing.T, path string, schema apiextensionsv1.JSONSchemaProps, defaults map[string]any) (compared int) {
	t.Helper()
	documented := regexp.MustCompile(`Default:\s+"?([\w-]+)"?`)
	for name, value := range defaults {
		field, ok := schema.Properties[name]
		if !ok {
			t.Errorf("%s.%s is not in the schema", path, name)
			continue
		}
		if field.Default != nil {
			t.Errorf("the API server would write %s.%s: %s into what users leave to policies", path, name, field.Default.Raw)
		}
		if inner, ok := value.(map[string]any); ok {
			if name != "detectLocal" { // overridden and documented as a whole
				compared += compareDocumented(t, path+"."+name, field, inner)
			}
			continue
		}
		want, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		found := documented.FindStringSubmatch(field.Description)
		if len(found) != 2 || found[1] != strings.Trim(string(want), `"`) {
			t.Errorf("%s.%s is %s by default; documented: %s", path, name, want, field.Description)
		}
		compared++
	}
	return compared
}

// TestSchedulersAreThoseOfTheSchema: the Go list and the rule of the CRDs repeat each other.
func TestSchedulersAreThoseOfTheSchema(t *testing.T) {
	list := regexp.MustCompile(`scheduler.* in \[([^]]*)\]`)
	seen := 0
	for kind, crd := range crds(t) {
		text, err := json.Marshal(crd.Spec)
		if err != nil {
			t.Fatal(err)
		}
		for rule := range strings.SplitSeq(string(text), `"rule":`) {
			rule, _, _ = strings.Cut(rule, `","`)
			found := list.FindStringSubmatch(rule)
			if found == nil {
				continue
			}
			seen++
			if got := strings.Split(strings.NewReplacer("'", "", " ", "").Replace(found[1]), ","); !slices.Equal(got, IPVSSchedulers()) {
				t.Errorf("%s accepts %v, and the agent knows %v", kind, got, IPVSSchedulers())
			}
		}
	}
	if seen == 0 {
		t.Error("no rule of a CRD lists schedulers")
	}
}

// crds returns the CRDs of the repository, by kind.
func crds(t *testing.T) map[string]*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", "config", "crd", "bases", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no CRDs: %v", err)
	}
	out := map[string]*apiextensionsv1.CustomResourceDefinition{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(text, crd); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		out[crd.Spec.Names.Kind] = crd
	}
	return out
}
