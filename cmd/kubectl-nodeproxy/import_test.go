package main

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/command"
	"github.com/nodeproxy-io/nodeproxy/test/recorded"
)

// imported are clusters and what is printed for them, which the tests of package kubeproxy
// compare.
var imported = filepath.Join("internal", "kubeproxy", "testdata")

// api serves the objects of a file, and records what is requested.
type api struct {
	objects map[string][]unstructured.Unstructured // by resource
	denied  string                                 // a resource

	mu       sync.Mutex
	requests []string
}

func serve(t *testing.T, cluster, denied string) (*api, string) {
	t.Helper()
	file, err := os.Open(filepath.Join(imported, "clusters", cluster+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	a := &api{objects: map[string][]unstructured.Unstructured{}, denied: denied}
	for decoder := utilyaml.NewYAMLOrJSONDecoder(file, 4096); ; {
		var o unstructured.Unstructured
		if err := decoder.Decode(&o); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		resource := strings.ToLower(o.GetKind()) + "s"
		a.objects[resource] = append(a.objects[resource], o)
	}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	return a, server.URL
}

// ServeHTTP answers lists and gets.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.requests = append(a.requests, r.Method+" "+r.URL.Path)
	a.mu.Unlock()
	parts := strings.Split(r.URL.Path, "/")
	last := parts[len(parts)-1]
	var answer any
	if list, known := a.objects[last]; known || last == "pods" || last == "daemonsets" || last == "nodes" {
		answer = map[string]any{"metadata": map[string]any{}, "items": slices.Concat([]unstructured.Unstructured{}, list)}
	}
	for i, o := range a.objects[parts[len(parts)-2]] {
		if o.GetName() == last {
			answer = &a.objects[parts[len(parts)-2]][i]
		}
	}
	var failed *apierrors.StatusError
	switch {
	case last == a.denied:
		failed = apierrors.NewForbidden(schema.GroupResource{Resource: last}, "", errors.New(`User "`+recorded.User+`" cannot list resource "`+last+`"`))
	case answer == nil:
		failed = apierrors.NewNotFound(schema.GroupResource{}, last)
	}
	w.Header().Set("Content-Type", "application/json")
	if failed != nil {
		status := failed.Status()
		status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		w.WriteHeader(int(status.Code))
		answer = status
	}
	_ = json.NewEncoder(w).Encode(answer) // the client may be gone
}

// TestImport: import-kube-proxy reads what docs/kubectl-plugin.md lists, and nothing else.
func TestImport(t *testing.T) {
	t.Parallel()
	const daemonSets, pods, nodes = "GET /apis/apps/v1/namespaces/kube-system/daemonsets", "GET /api/v1/namespaces/kube-system/pods", "GET /api/v1/nodes"
	const configMap = "GET /api/v1/namespaces/kube-system/configmaps/"
	for cluster, tt := range map[string]struct {
		args     string
		want     int
		warning  string
		requests []string
	}{
		"kubeadm-1.31":          {"--audit", command.ExitOK, "", []string{daemonSets, configMap + "kube-proxy", pods}},
		"kubeadm-1.36-nftables": {"", command.ExitOK, "", []string{daemonSets, configMap + "kube-proxy", pods}},
		"eks":                   {"--audit", command.ExitFindings, "warning: 1 setting is not carried over: see the comments\n", []string{daemonSets, configMap + "kube-proxy-config", pods}},
		"gke":                   {"--audit", command.ExitOK, "", []string{daemonSets, pods}},
		"rke2":                  {"--audit", command.ExitFindings, "warning: 2 settings are not carried over: see the comments\n", []string{daemonSets, pods, nodes}},
		"k3s":                   {"", command.ExitFindings, "warning: 2 settings are not carried over: see the comments\n", []string{daemonSets, pods, nodes}},
	} {
		t.Run(cluster, func(t *testing.T) {
			t.Parallel()
			a, url := serve(t, cluster, "")
			args := append([]string{"import-kube-proxy", "--kubeconfig=" + writeKubeconfig(t, url)}, strings.Fields(tt.args)...)
			out, errs, status := execute(t, atNoTime, args...)
			golden := string(read(t, filepath.Join(imported, "golden", cluster+".yaml")))
			if status != tt.want || errs != tt.warning || out != golden {
				t.Errorf("exit code %d, not %d, stderr %q, not %q, stdout\n%s", status, tt.want, errs, tt.warning, out)
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			if !slices.Equal(a.requests, tt.requests) {
				t.Errorf("requests %q, not %q", a.requests, tt.requests)
			}
		})
	}
}

// TestImportErrors: permissions that are missing, and what cannot be read.
func TestImportErrors(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		cluster, denied string
		want            string
	}{
		"daemonsets": {"kubeadm-1.31", "daemonsets", "error: you are not allowed to read daemonsets.apps cluster-wide: ask an administrator to bind the ClusterRole view to you (kubectl create clusterrolebinding NAME --clusterrole=view --user=jane)\n"},
		"pods":       {"kubeadm-1.31", "pods", "error: you are not allowed to read pods cluster-wide: ask an administrator to bind the ClusterRole view to you (kubectl create clusterrolebinding NAME --clusterrole=view --user=jane)\n"},
		"configmaps": {"kubeadm-1.31", "kube-proxy", "error: you are not allowed to read configmaps cluster-wide: ask an administrator to bind the ClusterRole view to you (kubectl create clusterrolebinding NAME --clusterrole=view --user=jane)\n"},
		"nodes":      {"k3s", "nodes", "error: you are not allowed to list nodes: ask an administrator (kubectl create clusterrole nodes-reader --verb=list --resource=nodes; kubectl create clusterrolebinding NAME --clusterrole=nodes-reader --user=jane)\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url := serve(t, tt.cluster, tt.denied)
			out, errs, status := execute(t, atNoTime, "import-kube-proxy", "--kubeconfig="+writeKubeconfig(t, url))
			if out != "" || errs != tt.want || status != command.ExitError {
				t.Errorf("exit code %d, stdout %q, stderr\n%q, want\n%q", status, out, errs, tt.want)
			}
		})
	}
	a, url := serve(t, "kubeadm-1.31", "")
	a.objects["configmaps"] = nil
	const want = "error: DaemonSet kube-system/kube-proxy: the ConfigMap kube-system/kube-proxy of --config does not exist\n"
	if out, errs, status := execute(t, atNoTime, "import-kube-proxy", "--kubeconfig="+writeKubeconfig(t, url)); out != "" || errs != want || status != command.ExitFindings {
		t.Errorf("exit code %d, stdout %q, stderr\n%q, want\n%q", status, out, errs, want)
	}
}
