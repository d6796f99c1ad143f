package gitops_test

import (
	"context"
	"strings"
	"testing"
	"time"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// argoConfig is the data of the ConfigMap argocd-cm.
func argoConfig(t *testing.T) map[string]string {
	t.Helper()
	data, found, err := unstructured.NestedStringMap(documents(t, configFile("argocd-cm.yaml"))[0].Object, "data")
	if err != nil || !found {
		t.Fatalf("no data: %v", err)
	}
	return data
}

// health runs a script as Argo CD does: the object is the global obj, of the
// libraries only the basic one and that of tables are there, and it has a second.
func health(t *testing.T, script string, object *unstructured.Unstructured) (status, message string) {
	t.Helper()
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for name, open := range map[string]lua.LGFunction{lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable} {
		if err := state.CallByParam(lua.P{Fn: state.NewFunction(open), Protect: true}, lua.LString(name)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	state.SetContext(ctx)
	state.SetGlobal("obj", toLua(state, object.Object))
	if err := state.DoString(script); err != nil {
		t.Fatal(err)
	}
	result, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		t.Fatalf("the script returns no table but %s", state.Get(-1).Type())
	}
	return lua.LVAsString(result.RawGetString("status")), lua.LVAsString(result.RawGetString("message"))
}

func toLua(state *lua.LState, value any) lua.LValue {
	switch v := value.(type) {
	case bool:
		return lua.LBool(v)
	case string:
		return lua.LString(v)
	case int64:
		return lua.LNumber(v)
	case float64:
		return lua.LNumber(v)
	case []any:
		list := state.NewTable()
		for _, entry := range v {
			list.Append(toLua(state, entry))
		}
		return list
	case map[string]any:
		table := state.NewTable()
		for key, entry := range v {
			table.RawSetString(key, toLua(state, entry))
		}
		return table
	}
	return lua.LNil
}

func TestArgoCDHealth(t *testing.T) {
	config := argoConfig(t)
	for _, s := range situations(t) {
		t.Run(s.Name, func(t *testing.T) {
			script := config["resource.customizations.health.nodeproxy.io_"+s.kind]
			if script == "" {
				t.Fatalf("no health script for %s", s.kind)
			}
			status, message := health(t, script, s.object)
			if status != s.ArgoCD || !strings.Contains(message, s.Message) {
				t.Errorf("%s, %q; want %s, and %q in the message", status, message, s.ArgoCD, s.Message)
			}
		})
	}
}

// Every kind has the same script, so that the tests of one are those of all.
func TestArgoCDScriptsAreTheSame(t *testing.T) {
	config := argoConfig(t)
	first := config["resource.customizations.health.nodeproxy.io_NodeProxy"]
	for _, kind := range []string{"NodeProxyPolicy", "ServiceProxyPolicy"} {
		if config["resource.customizations.health.nodeproxy.io_"+kind] != first {
			t.Errorf("the health script of %s is another than that of NodeProxy", kind)
		}
	}
}

// What the controller renders is neither watched nor a reason to refresh; a status
// refreshes nothing by itself, and an edited spec does.
func TestArgoCDLooksAtNoRenderedKinds(t *testing.T) {
	var exclusions []struct {
		APIGroups []string `json:"apiGroups"`
		Kinds     []string `json:"kinds"`
		Clusters  []string `json:"clusters"`
	}
	readYAML(t, configFile("argocd-exclusions.yaml"), &exclusions)
	if len(exclusions) != 1 || strings.Join(exclusions[0].APIGroups, " ") != v1alpha1.GroupVersion.Group ||
		strings.Join(exclusions[0].Kinds, " ") != "NodeProxyRules ServiceProxyRules" || strings.Join(exclusions[0].Clusters, " ") != "*" {
		t.Errorf("exclusions %+v", exclusions)
	}
	config := argoConfig(t)
	for kind, want := range map[string]string{
		"NodeProxy": "/status", "NodeProxyPolicy": "/status", "ServiceProxyPolicy": "/status",
	} {
		var ignored struct {
			JSONPointers []string `json:"jsonPointers"`
		}
		text := config["resource.customizations.ignoreResourceUpdates.nodeproxy.io_"+kind]
		if err := yaml.UnmarshalStrict([]byte(text), &ignored); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(ignored.JSONPointers, " "); got != want {
			t.Errorf("%s: %q is ignored, want %q", kind, got, want)
		}
	}
}

func TestArgoCDApplications(t *testing.T) {
	for _, application := range documents(t, configFile("argocd-applications.yaml")) {
		prune, _, err := unstructured.NestedBool(application.Object, "spec", "syncPolicy", "automated", "prune")
		if err != nil || !prune {
			t.Errorf("%s: a policy that is removed from the repository would stay: %v", application.GetName(), err)
		}
	}
}
