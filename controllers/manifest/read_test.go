package manifest

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/nodeproxy-io/nodeproxy/config/crd"
)

const policyHead = "apiVersion: nodeproxy.io/v1alpha1\nkind: NodeProxyPolicy\nmetadata: {name: edge}\n"

func parse(t *testing.T, files ...string) (*Read, error) {
	t.Helper()
	in := make([]File, len(files))
	for i, text := range files {
		in[i] = File{Name: fmt.Sprintf("f%d.yaml", i+1), Text: []byte(text)}
		if text, isJSON := strings.CutPrefix(text, "JSON:"); isJSON {
			in[i] = File{Name: fmt.Sprintf("f%d.json", i+1), Text: []byte(text)}
		}
	}
	return Parse(t.Context(), crd.Bases(), in)
}

// Whatever form a file has, the same objects are found in it.
func TestForms(t *testing.T) {
	node := `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}`
	policy := `{"apiVersion":"nodeproxy.io/v1alpha1","kind":"NodeProxyPolicy","metadata":{"name":"edge"},"spec":{"nodeSelector":{},"settings":{"mode":"IPVS"}}}`
	for name, text := range map[string]string{
		"documents":            "# head\n---\napiVersion: v1\nkind: Node\nmetadata: {name: n1}\n---   \n" + policyHead + "spec: {nodeSelector: {}, settings: {mode: IPVS}}\n---\n# nothing\n",
		"Windows line ends":    "apiVersion: v1\r\nkind: Node\r\nmetadata:\r\n  name: n1\r\n---\r\n" + policy + "\r\n",
		"byte order mark":      "\ufeffapiVersion: v1\nkind: Node\nmetadata: {name: n1}\n---\n" + policy,
		"on the dashes' line":  "--- " + node + "\n--- " + policy + "\n",
		"dashes with comments": "--- # one\n" + node + "\n--- # two\n" + policy + "\n",
		"dashes in a text":     "apiVersion: v1\nkind: Node\nmetadata:\n  name: n1\n  annotations:\n    text: |\n      ---\n      more\n---\n" + policy,
		"YAML with braces":     "{apiVersion: v1, kind: Node, metadata: {name: n1}}\n---\n" + policy,
		"several JSON values":  node + "\n" + policy,
		"List":                 `{"apiVersion":"v1","kind":"List","items":[` + node + "," + policy + "]}",
		"List in YAML":         "apiVersion: v1\nkind: List\nitems:\n- " + node + "\n- " + policy + "\n",
		"lists of a kind": `{"apiVersion":"v1","kind":"NodeList","items":[{"metadata":{"name":"n1"}}]}` +
			`{"apiVersion":"nodeproxy.io/v1alpha1","kind":"NodeProxyPolicyList","items":[{"metadata":{"name":"edge"},"spec":{"nodeSelector":{},"settings":{"mode":"IPVS"}}}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parse(t, text)
			if err != nil {
				t.Fatal(err)
			}
			o := got.Objects
			if len(o.Nodes) != 1 || o.Nodes[0].Name != "n1" || len(o.NodePolicies) != 1 || o.NodePolicies[0].Name != "edge" || *o.NodePolicies[0].Spec.Settings.Mode != "IPVS" {
				t.Errorf("got %+v", o)
			}
		})
	}
}

// Objects that nothing is rendered from are counted.
func TestIgnored(t *testing.T) {
	got, err := parse(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\napiVersion: apps/v1\nkind: Deployment\n---\napiVersion: v1\nkind: ConfigMap\n")
	if err != nil {
		t.Fatal(err)
	}
	if want := "ignoring 3 objects that nothing is rendered from: 2 ConfigMap (v1), 1 Deployment (apps/v1)"; got.Ignored() != want {
		t.Errorf("got %q, want %q", got.Ignored(), want)
	}
	if got, err := parse(t, ""); err != nil || got.Ignored() != "" {
		t.Errorf("an empty file: %+v, %v", got, err)
	}
}

// What is wrong is named with its place, and all of it at once.
func TestDenied(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"not YAML":            {"a: 1\n---\nb: [\n", "f1.yaml, document 2 (line 3): not YAML: yaml: line 3:"},
		"the same key twice":  {"# c\n---\na: 1\nb: 2\na: 3\n", "line 5: key \"a\" already set in map"},
		"not JSON":            {"JSON:{\"apiVersion\": \"v1\", \"kind\": \"Pod\"}\n{\"b\"\n", "f1.json, document 2 (line 2) is not JSON"},
		"text":                {"hello\n", "f1.yaml, document 1 (line 1): not an object of Kubernetes"},
		"no kind":             {"replicas: 1\n", "f1.yaml, document 1 (line 1): apiVersion and kind are missing"},
		"kind misspelt":       {"apiVersion: nodeproxy.io/v1alpha1\nkind: NodeproxyPolicy\nmetadata: {name: a}\n", "there is no kind NodeproxyPolicy in nodeproxy.io/v1alpha1"},
		"version to come":     {"apiVersion: nodeproxy.io/v2\nkind: NodeProxy\nmetadata: {name: cluster}\n", "there is no kind NodeProxy in nodeproxy.io/v2"},
		"no name":             {"apiVersion: v1\nkind: Node\n", "document 1 (line 1): Node: metadata.name is missing"},
		"no such field of v1": {"apiVersion: v1\nkind: Node\nmetadata: {name: a}\nspec: 7\n", "document 1 (line 1): Node a: json: cannot unmarshal"},
		"item of a list":      {"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Node, metadata: {name: a}}\n- {apiVersion: v1, kind: Node}\n", "f1.yaml, document 1 (line 1), item 2: Node: metadata.name is missing"},
		"null in a list":      {"apiVersion: v1\nkind: NodeList\nitems: [null]\n", "f1.yaml, document 1 (line 1), item 1: apiVersion and kind are missing"},
		"twice":               {policyHead + "spec: {nodeSelector: {}, settings: {mode: IPVS}}\n---\n" + policyHead + "spec: {nodeSelector: {}, settings: {mode: IPVS}}\n", "document 2 (line 6): NodeProxyPolicy edge is in f1.yaml, document 1 (line 1) already"},

		"unknown field":        {policyHead + "spec: {nodeSelector: {}, settings: {mode: IPVS, ipvs: {schedular: lc}}}\n", "NodeProxyPolicy edge: spec.settings.ipvs.schedular: there is no such field"},
		"unknown metadata":     {strings.Replace(policyHead, "name: edge", "name: edge, lables: {a: b}", 1) + "spec: {nodeSelector: {}, settings: {mode: IPVS}}\n", "metadata.lables: there is no such field"},
		"name":                 {strings.Replace(policyHead, "edge", "Edge_Pool", 1) + "spec: {nodeSelector: {}, settings: {mode: IPVS}}\n", "metadata.name: Invalid value"},
		"scheduler":            {policyHead + "spec: {nodeSelector: {}, settings: {ipvs: {scheduler: fastest}}}\n", "spec.settings.ipvs.scheduler: Invalid value: settings.ipvs.scheduler must be a Linux IPVS scheduler"},
		"no selector":          {policyHead + "spec: {settings: {mode: IPVS}}\n", "spec.nodeSelector: Required value"},
		"selector":             {policyHead + "spec: {nodeSelector: {matchExpressions: [{key: pool, operator: In}]}, settings: {mode: IPVS}}\n", "spec.nodeSelector.matchExpressions[0].values"},
		"maxUnavailable 0":     {policyHead + "spec: {nodeSelector: {}, settings: {mode: IPVS}, rollout: {maxUnavailable: 0}}\n", "rollout.maxUnavailable must be a number of nodes, 1 or more, or 1% to 100%"},
		"maxUnavailable -1":    {policyHead + "spec: {nodeSelector: {}, settings: {mode: IPVS}, rollout: {maxUnavailable: -1}}\n", "rollout.maxUnavailable must be a number"},
		"deadline 0":           {policyHead + "spec: {nodeSelector: {}, settings: {mode: IPVS}, rollout: {progressDeadlineSeconds: 0}}\n", "rollout.progressDeadlineSeconds must be 1 or more"},
		"union half given":     {policyHead + "spec: {nodeSelector: {}, settings: {detectLocal: {mode: ClusterCIDR}}}\n", "settings.detectLocal.clusterCIDRs"},
		"malformed CIDR":       {policyHead + "spec: {nodeSelector: {}, settings: {nodePorts: {addressMode: CIDRs, cidrs: [192.0.2.0]}}}\n", "settings.nodePorts.cidrs must contain CIDRs"},
		"wrong type":           {policyHead + "spec: {nodeSelector: {}, settings: {masquerade: {all: yes}}}\n", "spec.settings.masquerade.all"},
		"name of NodeProxy":    {"apiVersion: nodeproxy.io/v1alpha1\nkind: NodeProxy\nmetadata: {name: other}\nspec: {}\n", "NodeProxy other:"},
		"ranges of a Service":  {servicePolicy("loadBalancerSourceRanges: [10.0.0.0]"), "overrides.loadBalancerSourceRanges must contain CIDRs"},
		"nothing in overrides": {servicePolicy("ipvsSchedular: lc"), "spec.overrides.ipvsSchedular: there is no such field"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(t, c.text)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	_, err := parse(t, "apiVersion: v1\nkind: Node\n", "x: 1\n---\na: [\n")
	if got := strings.Split(fmt.Sprint(err), "\n"); len(got) != 3 || !strings.HasPrefix(got[0], "f1.yaml, document 1") || !strings.HasPrefix(got[2], "f2.yaml, document 2") {
		t.Errorf("got %d errors: %v", len(got), err)
	}
}

func servicePolicy(overrides string) string {
	return "apiVersion: nodeproxy.io/v1alpha1\nkind: ServiceProxyPolicy\nmetadata: {name: p}\nspec:\n  namespaceSelector: {}\n  serviceSelector: {}\n  overrides: {" + overrides + "}\n"
}

// What the API server accepts is accepted here.
func TestAccepted(t *testing.T) {
	for name, text := range map[string]string{
		"percentage":     policyHead + "spec: {nodeSelector: {}, settings: {mode: IPVS}, rollout: {maxUnavailable: 10%}}\n",
		"number":         policyHead + "spec: {nodeSelector: {}, settings: {mode: IPVS}, rollout: {maxUnavailable: 3}}\n",
		"a namespace":    strings.Replace(policyHead, "name: edge", "name: edge, namespace: default", 1) + "spec: {nodeSelector: {}, settings: {mode: IPVS}}\n",
		"status":         policyHead + "spec: {nodeSelector: {}, settings: {mode: IPVS}}\nstatus: {nodes: 1, updated: 1, programmed: 1}\n",
		"NodeProxy":      "apiVersion: nodeproxy.io/v1alpha1\nkind: NodeProxy\nmetadata: {name: cluster}\nspec: {}\n",
		"overrides":      servicePolicy("nodePorts: Disabled, ipvsScheduler: sh, loadBalancerSourceRanges: [198.51.100.0/24]"),
		"fields to come": "apiVersion: v1\nkind: Node\nmetadata: {name: a}\nspec: {fromTheFuture: 1}\n",
		"Service elsewhere": "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: here}\n---\n" +
			"apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: there}\n",
	} {
		if _, err := parse(t, text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNoSuchCRD(t *testing.T) {
	_, err := Parse(t.Context(), fstest.MapFS{}, []File{{Name: "f", Text: []byte(servicePolicy("ipvsScheduler: sh"))}})
	if err == nil || !strings.Contains(err.Error(), "there is no CRD of ServiceProxyPolicy") {
		t.Errorf("got %v", err)
	}
}
