package recorded

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

const (
	baseText = `now: "2026-11-22T12:00:00Z"
commands:
- status
objects:
  namespaces:
    shop: {metadata: {labels: {exposed: "yes"}}}
  nodeproxyrules: {}
  pods:
    shop/web-1:
      metadata: {labels: {app: web, tier: front, zone: a}}
      status:
        conditions:
        - message: "the pod is not ready because of something that takes many words to explain, and explains it on several lines where a
            line is too long to be read without scrolling: first this, then that, and at last the end of it all"
          type: Ready
        phase: Running
        podIP: 10.244.0.2
    shop/web-2: {like: shop/web-1, metadata: {labels: {tier: null}}, status: {podIP: 10.244.0.3}}
`
	changedText = `parent: base
now: "2026-11-22T12:01:00Z"
forbidden:
- services
commands:
- doctor
objects:
  namespaces: null
  pods:
    shop/web-1: {metadata: {labels: {zone: null}}, status: {conditions: {Ready: {reason: short}}, podIP: 10.244.0.9}}
    shop/web-2: null
    shop/web-3: {like: shop/web-1, status: {podIP: 10.244.0.4}}
  services: {}
`
)

func write(t *testing.T, directory string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(directory, name+suffix), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLoad: a state is its parent with all that its file contains.
func TestLoad(t *testing.T) {
	directory := t.TempDir()
	write(t, directory, map[string]string{"base": baseText, "changed": changedText})
	state, err := Load(filepath.Join(directory, "changed"))
	if err != nil {
		t.Fatal(err)
	}
	const message = "the pod is not ready because of something that takes many words to explain, and explains it on several lines where a line is " +
		"too long to be read without scrolling: first this, then that, and at last the end of it all"
	want := `nodeproxyrules: []
pods:
- apiVersion: v1
  kind: Pod
  metadata: {labels: {app: web, tier: front}, name: web-1, namespace: shop}
  status: {conditions: [{message: "` + message + `", reason: short, type: Ready}], phase: Running, podIP: 10.244.0.9}
- apiVersion: v1
  kind: Pod
  metadata: {labels: {app: web, tier: front}, name: web-3, namespace: shop}
  status: {conditions: [{message: "` + message + `", reason: short, type: Ready}], phase: Running, podIP: 10.244.0.4}
services: []
`
	got := map[string][]any{}
	for resource, list := range state.lists {
		got[resource.Resource] = []any{}
		for _, item := range list.Items {
			got[resource.Resource] = append(got[resource.Resource], item.Object)
		}
	}
	if got, want := normal(t, got), normal(t, want); got != want {
		t.Errorf("the state is\n%s\nand should be\n%s", got, want)
	}
	if strings.Join(state.Commands, ",") != "doctor" || strings.Join(state.Forbidden, ",") != "services" || state.Parent != "base" || state.Now.Minute() != 1 {
		t.Errorf("commands %q, forbidden %q, parent %q, now %s", state.Commands, state.Forbidden, state.Parent, state.Now)
	}
}

// TestLikeAnother: an object may be like one that is like another, in any order of their names.
func TestLikeAnother(t *testing.T) {
	directory := t.TempDir()
	write(t, directory, map[string]string{"one": "{now: 2026-11-22T12:00:00Z, objects: {pods: {a/a: {like: a/b, c: 3}, a/b: {like: a/c, b: 2}, a/c: {a: 1}}}}"})
	_, all, err := loadDocument(filepath.Join(directory, "one"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := normal(t, all["pods"]), normal(t, "{a/a: {a: 1, b: 2, c: 3}, a/b: {a: 1, b: 2}, a/c: {a: 1}}"); got != want {
		t.Errorf("the objects are\n%s\nand should be\n%s", got, want)
	}
}

// normal returns text or a value as YAML in one form.
func normal(t *testing.T, value any) string {
	t.Helper()
	if text, is := value.(string); is {
		value = nil
		if err := yaml.Unmarshal([]byte(text), &value); err != nil {
			t.Fatal(err)
		}
	}
	text, err := yaml.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestStore: what is loaded is stored as the same text, without what the plugin never
// reads, and a new parent leaves its children as they are.
func TestStore(t *testing.T) {
	directory := t.TempDir()
	write(t, directory, map[string]string{"base": baseText, "changed": changedText})
	states, err := LoadAll(directory)
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range states["base"].lists {
		for i := range list.Items {
			list.Items[i].SetUID("not read")
			list.Items[i].Object["spec"] = nil
		}
	}
	if err := Store(directory, states); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"base": baseText, "changed": changedText} {
		if got, err := os.ReadFile(filepath.Join(directory, name+suffix)); err != nil || string(got) != want {
			t.Errorf("%s: %v\n%s", name, err, got)
		}
	}

	before := normal(t, states["changed"].contents())
	states["base"] = &State{Now: states["base"].Now, Commands: []string{"status"}}
	if err := Store(directory, states); err != nil {
		t.Fatal(err)
	}
	changed, err := Load(filepath.Join(directory, "changed"))
	if err != nil {
		t.Fatal(err)
	}
	if after := normal(t, changed.contents()); after != before {
		t.Errorf("with an empty parent the state is\n%s\nand was\n%s", after, before)
	}
	text, err := os.ReadFile(filepath.Join(directory, "changed"+suffix))
	if err != nil || !bytes.Contains(text, []byte("phase: Running")) {
		t.Errorf("%v: the file relies on a parent that no longer has the pods:\n%s", err, text)
	}
}

// TestLoadErrors: a file that cannot be meant is an error.
func TestLoadErrors(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"loop":      {"{parent: other, now: 2026-11-22T12:00:00Z}", "is its own ancestor"},
		"no parent": {"{parent: none, now: 2026-11-22T12:00:00Z}", "no such file"},
		"no object": {"{now: 2026-11-22T12:00:00Z, objects: {pods: {shop/web-1: null}}}", "shop/web-1 is deleted, and the parent does not have it"},
		"no like":   {"{now: 2026-11-22T12:00:00Z, objects: {pods: {a: {like: b}}}}", "a is like b, which is missing"},
		"like loop": {"{now: 2026-11-22T12:00:00Z, objects: {pods: {a: {like: b}, b: {like: a}, c: {}}}}", "are like each other"},
		"field":     {"{now: 2026-11-22T12:00:00Z, object: {}}", `unknown field "object"`},
	} {
		t.Run(name, func(t *testing.T) {
			directory := t.TempDir()
			write(t, directory, map[string]string{"one": c.text, "other": "{parent: one, now: 2026-11-22T12:00:00Z}"})
			if _, err := Load(filepath.Join(directory, "one")); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, and not %q", err, c.want)
			}
		})
	}
}

// TestTrim: what the plugin reads stays, and nothing else.
func TestTrim(t *testing.T) {
	for kindName, c := range map[string]struct{ from, want string }{
		"Pod": {
			`{metadata: {name: a, uid: b, resourceVersion: "1", annotations: {c: d}, labels: {e: f}, managedFields: [{time: "1"}]},
			spec: {nodeName: n, hostNetwork: true, containers: [{name: x}]},
			status: {phase: Running, podIP: 10.0.0.1, hostIP: 10.0.0.2, conditions: [
			{type: Ready, status: "True", lastProbeTime: null}, {type: Initialized, status: "True"}, {type: Other, status: "False", message: m}],
			containerStatuses: [{name: x, image: i, state: {running: {}}}, {name: y, image: i, state: {waiting: {reason: r}}}]}}`,
			`{metadata: {name: a, labels: {e: f}}, spec: {nodeName: n, hostNetwork: true},
			status: {phase: Running, podIP: 10.0.0.1, conditions: [{type: Other, status: "False", message: m}, {type: Ready, status: "True"}],
			containerStatuses: [{name: y, state: {waiting: {reason: r}}}]}}`,
		},
		"ServiceProxyRules": {
			`{metadata: {name: a, uid: b, resourceVersion: "1", generation: 2, annotations: {nodeproxy.io/written: "1"},
			managedFields: [{manager: m, subresource: status, time: "1"}]}, spec: {released: false}}`,
			`{metadata: {name: a, resourceVersion: "1", generation: 2, annotations: {nodeproxy.io/written: "1"}}, spec: {released: false}}`,
		},
		"NodeProxy":     {`{metadata: {name: a, managedFields: [{time: "1"}]}, spec: {b: c}}`, `{metadata: {name: a}, spec: {b: c}}`},
		"Namespace":     {`{metadata: {name: a, labels: {b: c}}, spec: {finalizers: [kubernetes]}, status: {phase: Active}}`, `{metadata: {name: a, labels: {b: c}}}`},
		"EndpointSlice": {`{metadata: {name: a}, endpoints: [{targetRef: {name: b, uid: c}}]}`, `{metadata: {name: a}, endpoints: [{targetRef: {name: b}}]}`},
		"Service":       {`{metadata: {name: a, generateName: b}, spec: {type: ClusterIP}, status: {loadBalancer: {}}}`, `{metadata: {name: a}, spec: {type: ClusterIP}, status: {loadBalancer: {}}}`},
	} {
		t.Run(kindName, func(t *testing.T) {
			o := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(c.from), &o.Object); err != nil {
				t.Fatal(err)
			}
			trim(kind{kind: kindName}, o)
			if got, want := normal(t, o.Object), normal(t, c.want); got != want {
				t.Errorf("the object is\n%s\nand should be\n%s", got, want)
			}
		})
	}
}
