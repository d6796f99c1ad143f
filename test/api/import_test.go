package api_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What kubectl nodeproxy import-kube-proxy prints, which its own tests keep, is valid as it is.
func TestImportedKubeProxyIsValid(t *testing.T) {
	strict := client.WithFieldValidation(server.client, metav1.FieldValidationStrict)
	files, err := filepath.Glob(filepath.Join("..", "..", "cmd", "kubectl-nodeproxy", "internal", "kubeproxy", "testdata", "golden", "*.yaml"))
	if err != nil || len(files) < 8 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			file, err := os.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			for decoder := yaml.NewYAMLOrJSONDecoder(file, 4096); ; {
				object := &unstructured.Unstructured{}
				if err := decoder.Decode(object); errors.Is(err, io.EOF) {
					return
				} else if err != nil {
					t.Fatal(err)
				}
				if err := strict.Create(t.Context(), object, client.DryRunAll); err != nil {
					t.Errorf("%s %s: %v", object.GetKind(), object.GetName(), err)
				}
			}
		})
	}
}
