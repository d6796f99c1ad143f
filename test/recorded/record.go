package recorded

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// The files beside the lists.
const (
	nowFile       = "now"
	forbiddenFile = "forbidden"
)

// kind is a kind that is recorded.
type kind struct {
	schema.GroupVersionResource
	kind string
}

func kinds() []kind {
	own := v1alpha1.GroupVersion.WithResource
	core := schema.GroupVersion{Version: "v1"}.WithResource
	return []kind{
		{own("nodeproxies"), "NodeProxy"},
		{own("nodeproxyrules"), "NodeProxyRules"},
		{own("serviceproxyrules"), "ServiceProxyRules"},
		{own("nodeproxypolicies"), "NodeProxyPolicy"},
		{own("serviceproxypolicies"), "ServiceProxyPolicy"},
		{core("namespaces"), "Namespace"},
		{core("services"), "Service"},
		{core("pods"), "Pod"},
		{schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}, "EndpointSlice"},
	}
}

func (k kind) file(directory string) string { return filepath.Join(directory, k.Resource+".yaml") }

// Record writes the state of a cluster into a directory, which it makes or empties of a
// former record. A kind that the cluster does not have is left out.
func Record(ctx context.Context, config *rest.Config, directory string, now time.Time) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return fmt.Errorf("record: %w", err)
	}
	if err := os.RemoveAll(filepath.Join(directory, forbiddenFile)); err != nil { // the recording user may read all
		return fmt.Errorf("record: %w", err)
	}
	for _, k := range kinds() {
		list, err := client.Resource(k.GroupVersionResource).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			if err := os.RemoveAll(k.file(directory)); err != nil {
				return fmt.Errorf("record: %w", err)
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("record %s: %w", k.Resource, err)
		}
		sortByName(list)
		text, err := yaml.Marshal(list.UnstructuredContent())
		if err != nil {
			return fmt.Errorf("record %s: %w", k.Resource, err)
		}
		if err := os.WriteFile(k.file(directory), text, 0o644); err != nil {
			return fmt.Errorf("record: %w", err)
		}
	}
	if err := os.WriteFile(filepath.Join(directory, nowFile), []byte(now.UTC().Format(time.RFC3339)+"\n"), 0o644); err != nil {
		return fmt.Errorf("record: %w", err)
	}
	return nil
}

func sortByName(list *unstructured.UnstructuredList) {
	slices.SortFunc(list.Items, func(a, b unstructured.Unstructured) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
}
