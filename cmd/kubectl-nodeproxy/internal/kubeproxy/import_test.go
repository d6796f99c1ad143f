package kubeproxy

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/goldentest"
)

var update = flag.Bool("update", false, "write the golden files, and the table of docs/migration.md")

// objects is a cluster with these objects only.
type objects struct {
	daemonSets []appsv1.DaemonSet
	pods       []corev1.Pod
	configMaps []corev1.ConfigMap
	nodes      []corev1.Node
	// denied is the error of reading Nodes.
	denied error
}

func (o *objects) DaemonSets(_ context.Context, namespace string) ([]appsv1.DaemonSet, error) {
	if namespace != Namespace {
		return nil, errors.New("only kube-system is necessary")
	}
	return o.daemonSets, nil
}

func (o *objects) Pods(_ context.Context, namespace string, keep func(*corev1.Pod) bool) (out []corev1.Pod, err error) {
	for i := range o.pods {
		if o.pods[i].Namespace == namespace && keep(&o.pods[i]) {
			out = append(out, o.pods[i])
		}
	}
	return out, nil
}

func (o *objects) ConfigMap(_ context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	for i := range o.configMaps {
		if o.configMaps[i].Namespace == namespace && o.configMaps[i].Name == name {
			return &o.configMaps[i], nil
		}
	}
	return nil, nil
}

func (o *objects) Nodes(context.Context) ([]corev1.Node, error) { return o.nodes, o.denied }

// read reads the objects of a file.
func read(t testing.TB, text string) *objects {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	documents := utilyaml.NewDocumentDecoder(io.NopCloser(strings.NewReader(text)))
	defer documents.Close()
	out := &objects{}
	buffer := make([]byte, 4<<20)
	for {
		n, err := documents.Read(buffer)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		object, _, err := decoder.Decode(buffer[:n], nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		switch o := object.(type) {
		case *appsv1.DaemonSet:
			out.daemonSets = append(out.daemonSets, *o)
		case *corev1.Pod:
			out.pods = append(out.pods, *o)
		case *corev1.ConfigMap:
			out.configMaps = append(out.configMaps, *o)
		case *corev1.Node:
			out.nodes = append(out.nodes, *o)
		}
	}
}

func load(t testing.TB, name string) *objects {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "clusters", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return read(t, string(text))
}

// TestClusters: what is printed for configurations of real distributions. test/api applies
// it to a real API server.
func TestClusters(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		enforcement v1alpha1.Enforcement
		lost        int
	}{
		"kubeadm-1.31":          {v1alpha1.Audit, 0},
		"kubeadm-1.36-ipvs":     {v1alpha1.Audit, 1},   // metrics on all addresses
		"kubeadm-1.36-nftables": {v1alpha1.Enforce, 0}, // dual stack
		"eks":                   {v1alpha1.Audit, 1},   // metrics on all addresses
		"aks":                   {v1alpha1.Audit, 1},   // metrics on all addresses
		"gke":                   {v1alpha1.Audit, 0},
		"k3s":                   {v1alpha1.Enforce, 2}, // health on a loopback address, for two pools
		"rke2":                  {v1alpha1.Audit, 2},   // the same
		"pools":                 {v1alpha1.Audit, 2},   // bindAddress; an affinity that no policy has
		"lost":                  {v1alpha1.Audit, 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			result, err := Import(t.Context(), load(t, name), tt.enforcement)
			if err != nil {
				t.Fatal(err)
			}
			if result.Lost != tt.lost {
				t.Errorf("%d settings are lost, not %d", result.Lost, tt.lost)
			}
			var out bytes.Buffer
			if err := result.Write(&out); err != nil {
				t.Fatal(err)
			}
			goldentest.Compare(t, filepath.Join("testdata", "golden", name+".yaml"), out.String(), *update)
		})
	}
}
