package olm

import (
	"fmt"
	"maps"
	"os"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/nodeproxy-io/nodeproxy/test/bundle"
)

// Bundle is the input of an installation.
type Bundle struct {
	csv    bundle.ClusterServiceVersion
	crds   []*unstructured.Unstructured
	beside []*unstructured.Unstructured
}

// Read reads the bundle of a directory, in which the directory bundle is, as make bundle writes
// it.
func Read(directory string) (*Bundle, error) {
	files, err := bundle.Files(os.DirFS(directory))
	if err != nil {
		return nil, fmt.Errorf("%s holds no bundle: %w", directory, err)
	}
	read, err := bundle.Parse(files)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", directory, err)
	}
	if read.CSV.Name == "" || len(read.CSV.Spec.Install.Spec.Deployments) == 0 {
		return nil, fmt.Errorf("%s: there is no ClusterServiceVersion with a Deployment", directory)
	}
	b := &Bundle{csv: read.CSV}
	for _, name := range slices.Sorted(maps.Keys(read.Objects)) {
		switch object := read.Objects[name]; object.GetKind() {
		case read.CSV.Kind:
		case "CustomResourceDefinition":
			b.crds = append(b.crds, object)
		default:
			b.beside = append(b.beside, object)
		}
	}
	return b, nil
}

// Name is that of the ClusterServiceVersion, as in nodeproxy.v0.1.0.
func (b *Bundle) Name() string { return b.csv.Name }

// CRDs are the names of the CRDs.
func (b *Bundle) CRDs() []string {
	var names []string
	for _, crd := range b.crds {
		names = append(names, crd.GetName())
	}
	return names
}
