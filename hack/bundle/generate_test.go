package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// whole is all that a small operator consists of.
const whole = `apiVersion: operators.coreos.com/v1alpha1
kind: ClusterServiceVersion
metadata: {name: nodeproxy, annotations: {categories: Networking}}
spec:
  customresourcedefinitions:
    owned:
    - {kind: Thing, displayName: A Thing, resources: [{kind: Pod, version: v1}]}
---
apiVersion: v1
kind: Namespace
metadata: {name: home, labels: {level: privileged}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: worker, namespace: home}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: everywhere}
rules:
- {apiGroups: [""], resources: [nodes], verbs: [list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: for-people}
rules:
- {apiGroups: [""], resources: [pods], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: at-home, namespace: home}
rules:
- {apiGroups: [""], resources: [secrets], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: of-another-name}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: everywhere}
subjects: [{kind: ServiceAccount, name: worker, namespace: home}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: at-home, namespace: home}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: at-home}
subjects: [{kind: ServiceAccount, name: worker, namespace: home}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: work, namespace: home, labels: {app: work}}
spec:
  template:
    spec:
      containers:
      - name: work
        image: old
        args: [--manage-cluster-objects]
        env:
        - {name: OTHER, value: same}
        - {name: RELATED_IMAGE_AGENT, value: old}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: work, namespace: home}
spec: {maxUnavailable: 1}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: guard}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec:
  group: example.com
  names: {kind: Thing, plural: things}
  versions:
  - name: v1
    served: true
    schema:
      openAPIV3Schema:
        description: "A thing is\none. It is not two."
        properties:
          spec: {properties: {mode: {type: string, description: mode.}}}
          status: {properties: {done: {type: boolean, description: done.}}}
`

const thing = "apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: one}\n"

func objectsOf(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	out, err := read(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func inputOf(t *testing.T, text string) input {
	t.Helper()
	return input{
		objects: objectsOf(t, text), examples: objectsOf(t, thing), icon: []byte("<svg/>"), scorecard: []byte("kind: Configuration\n"),
		version: version{release: "1.2.3", channel: "stable", controllerImage: "r/c@sha256:1", agentImage: "r/a@sha256:2"},
	}
}

// generated returns the files, of which the ClusterServiceVersion is read.
func generated(t *testing.T, in input) (files []string, csv map[string]any) {
	t.Helper()
	out, err := generate(in)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range out {
		files = append(files, name)
		if !strings.HasPrefix(string(text), header) {
			t.Errorf("%s does not begin with %q", name, header)
		}
	}
	slices.Sort(files)
	if err := yaml.UnmarshalStrict(out["bundle/manifests/nodeproxy.clusterserviceversion.yaml"], &csv); err != nil {
		t.Fatal(err)
	}
	return files, csv
}

func at(csv map[string]any, path ...string) any {
	out, _, _ := unstructured.NestedFieldNoCopy(csv, path...)
	return out
}

func TestGenerate(t *testing.T) {
	files, csv := generated(t, inputOf(t, whole))
	if diff := cmp.Diff([]string{
		"bundle.Dockerfile", "bundle/manifests/example.com_things.yaml", "bundle/manifests/for-people_clusterrole.yaml",
		"bundle/manifests/nodeproxy.clusterserviceversion.yaml", "bundle/manifests/work_poddisruptionbudget.yaml",
		"bundle/metadata/annotations.yaml", "bundle/tests/scorecard/config.yaml",
	}, files); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	rule := func(resource, verb string) []any {
		return []any{map[string]any{"serviceAccountName": "worker", "rules": []any{map[string]any{
			"apiGroups": []any{""}, "resources": []any{resource}, "verbs": []any{verb},
		}}}}
	}
	for path, want := range map[string]any{
		"metadata name":                        "nodeproxy.v1.2.3",
		"metadata annotations categories":      "Networking",
		"metadata annotations containerImage":  "r/c@sha256:1",
		"spec version":                         "1.2.3",
		"spec replaces":                        nil,
		"spec install spec clusterPermissions": rule("nodes", "list"),
		"spec install spec permissions":        rule("secrets", "get"),
		"spec relatedImages":                   []any{map[string]any{"name": "nodeproxy-agent", "image": "r/a@sha256:2"}, map[string]any{"name": "nodeproxy-controller", "image": "r/c@sha256:1"}},
		"spec icon":                            []any{map[string]any{"base64data": "PHN2Zy8+", "mediatype": "image/svg+xml"}},
		"metadata annotations operatorframework.io/suggested-namespace": "home",
		"spec customresourcedefinitions owned": []any{map[string]any{
			"kind": "Thing", "name": "things.example.com", "version": "v1", "displayName": "A Thing", "description": "A thing is one. It is not two.",
			"resources":         []any{map[string]any{"kind": "Pod", "version": "v1"}},
			"specDescriptors":   []any{map[string]any{"path": "mode", "displayName": "Mode", "description": "mode.", "x-descriptors": []any{asUI + "text"}}},
			"statusDescriptors": []any{map[string]any{"path": "done", "displayName": "Done", "description": "done."}},
		}},
		"spec install spec deployments": []any{map[string]any{
			"name": "work", "label": map[string]any{"app": "work"},
			"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"containers": []any{map[string]any{
				"name": "work", "image": "r/c@sha256:1", "args": []any{"--manage-cluster-objects"},
				"env": []any{map[string]any{"name": "OTHER", "value": "same"}, map[string]any{"name": "RELATED_IMAGE_AGENT", "value": "r/a@sha256:2"}},
			}}}}},
		}},
	} {
		if diff := cmp.Diff(want, at(csv, strings.Fields(path)...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
}

// A kind without an example is one that people write no objects of.
func TestInternalKinds(t *testing.T) {
	in := inputOf(t, whole)
	in.examples, in.replaces = nil, "1.2.2"
	_, csv := generated(t, in)
	const key = "operators.operatorframework.io/internal-objects"
	if got := at(csv, "metadata", "annotations", key); got != "[\n  \"things.example.com\"\n]" {
		t.Errorf("%s is %v", key, got)
	}
	owned, _ := at(csv, "spec", "customresourcedefinitions", "owned").([]any)
	if first, _ := owned[0].(map[string]any); first["specDescriptors"] != nil {
		t.Errorf("its fields are described: %v", first)
	}
	if got := at(csv, "spec", "replaces"); got != "nodeproxy.v1.2.2" {
		t.Errorf("spec.replaces is %v", got)
	}
}

func TestWhatCannotBeInABundleIsNamed(t *testing.T) {
	const daemonSet = "\n---\napiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: agents, namespace: home}\n"
	for name, c := range map[string]struct{ old, text, want string }{
		"unknown kind":         {"", daemonSet, "DaemonSet agents: DaemonSet.apps cannot be in a bundle"},
		"no version":           {"kind: ClusterServiceVersion", "kind: Namespace", "there is no ClusterServiceVersion"},
		"no Deployment":        {"kind: Deployment", "kind: PodDisruptionBudget", "there is no Deployment"},
		"another namespace":    {"kind: PodDisruptionBudget\nmetadata: {name: work, namespace: home}", "kind: PodDisruptionBudget\nmetadata: {name: work, namespace: away}", "PodDisruptionBudget work is in namespace away"},
		"role lacking":         {"kind: ClusterRole, name: everywhere", "kind: ClusterRole, name: nowhere", "ClusterRoleBinding of-another-name: binds ClusterRole nowhere, which does not exist"},
		"group's permissions":  {"subjects: [{kind: ServiceAccount, name: worker, namespace: home}]\n---\napiVersion: rbac", "subjects: [{kind: Group, name: all}]\n---\napiVersion: rbac", "ClusterRoleBinding of-another-name grants permissions to Group all"},
		"role without binding": {"kind: Role, name: at-home", "kind: ClusterRole, name: everywhere", "Role at-home has no binding"},
		"gathered role":        {"metadata: {name: everywhere}\n", "metadata: {name: everywhere}\naggregationRule: {}\n", "which aggregates others"},
		"no permissions":       {"kind: ServiceAccount\nmetadata: {name: worker, namespace: home}", "kind: ServiceAccount\nmetadata: {name: worker, namespace: home}\n---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: idle, namespace: home}", "ServiceAccount idle has no permissions"},
		"annotated":            {"labels: {app: work}", "annotations: {a: b}", "Deployment work: has annotations, which a ClusterServiceVersion cannot have"},
		"unknown image":        {"name: OTHER", "name: RELATED_IMAGE_OTHER", "does not know the image for the variable RELATED_IMAGE_OTHER"},
		"no image for agents":  {"RELATED_IMAGE_AGENT", "AGENT", "the controller lacks the variable RELATED_IMAGE_AGENT"},
		"more containers":      {"      - name: work\n", "      - name: more\n      - name: work\n", "one Deployment with one container"},
		"never created":        {"args: [--manage-cluster-objects]", "args: []", "lacks the flag --manage-cluster-objects, without which ValidatingAdmissionPolicy guard would be missing"},
		"kind not described":   {"kind: Thing, displayName", "kind: Other, displayName", "owned lacks Thing"},
		"kind without CRD":     {"kind: Thing, displayName", "kind: Other, displayName", "owned has Other, which has no CRD"},
		"written by hand":      {"spec:\n  customresourcedefinitions:", "spec:\n  version: 1.0.0\n  customresourcedefinitions:", "remove spec.version, which hack/bundle writes"},
		"annotation by hand":   {"categories: Networking", "alm-examples: '[]'", "remove the annotation alm-examples"},
		"two of a name":        {"", "\n---\napiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: work, namespace: home}\n", "would be written twice"},
	} {
		t.Run(name, func(t *testing.T) {
			text := whole + c.text
			if c.old != "" {
				if text = strings.Replace(whole, c.old, c.text, 1); text == whole {
					t.Fatalf("%q is not there", c.old)
				}
			}
			if _, err := generate(inputOf(t, text)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("it prints %v, want %q", err, c.want)
			}
		})
	}
}

func TestFlagsAreChecked(t *testing.T) {
	for name, c := range map[string]struct {
		change func(in *input)
		want   string
	}{
		"release":      {func(in *input) { in.release = "v1.2" }, `-release is "v1.2"`},
		"replaces":     {func(in *input) { in.replaces = "1" }, `-replaces is "1"`},
		"channel":      {func(in *input) { in.channel = "" }, `-channel is ""`},
		"image":        {func(in *input) { in.agentImage = "a b" }, `-agent-image is "a b"`},
		"two examples": {func(in *input) { in.examples = append(in.examples, in.examples[0]) }, "two examples of Thing"},
	} {
		in := inputOf(t, whole)
		c.change(&in)
		if _, err := generate(in); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: it prints %v, want %q", name, err, c.want)
		}
	}
}

func TestReleasesAreSemantic(t *testing.T) {
	for text, want := range map[string]bool{
		"0.1.0": true, "10.20.30": true, "1.0.0-rc.1": true, "1.0.0-0": true, "1.0.0-01a": true, "1.0.0-x-y.7": true,
		"": false, "1.0": false, "v1.0.0": false, "01.0.0": false, "1.0.0-01": false, "1.0.0-rc.01": false, "1.0.0-": false, "1.0.0-rc..1": false,
		"1.0.0+build": false, "1.0.0-rc.1+build": false, " 1.0.0": false, "1.0.0 ": false, "1.0.0junk": false, "1.0.0\n": false,
	} {
		if isRelease(text) != want {
			t.Errorf("%q: a release: %t", text, !want)
		}
	}
}

// What an earlier version had and this one has not must not stay.
func TestWriteRemovesWhatIsNotWritten(t *testing.T) {
	directory := t.TempDir()
	if err := write(directory, map[string][]byte{"bundle/manifests/old.yaml": nil, "bundle.Dockerfile": nil}); err != nil {
		t.Fatal(err)
	}
	if err := write(directory, map[string][]byte{"bundle/manifests/new.yaml": []byte("new")}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(directory, "bundle/manifests/old.yaml")); !os.IsNotExist(err) {
		t.Errorf("the old file: %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(directory, "bundle/manifests/new.yaml")); err != nil || string(text) != "new" {
		t.Errorf("the new file: %q, %v", text, err)
	}
}
