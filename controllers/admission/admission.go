package admission

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	manifests "github.com/nodeproxy-io/nodeproxy/config/admission"
)

// The label and kinds of the policies and their bindings.
const (
	LabelPartOf = "app.kubernetes.io/part-of"
	PartOf      = "nodeproxy"
	KindPolicy  = "ValidatingAdmissionPolicy"
	KindBinding = "ValidatingAdmissionPolicyBinding"
)

const (
	// manifestNamespace is the namespace that the manifests name.
	manifestNamespace = "nodeproxy-system"
	// privileged is the level of pod security that agents need for the network and directories of
	// the node.
	privileged = "privileged"
)

// Owner is the namespace of the controller. The objects are deleted with it.
type Owner struct {
	Name string
	UID  types.UID
}

// Read returns the policies and bindings to apply for a controller in a namespace: the embedded
// manifests with the service accounts of that namespace. The namespace owns them, so that none
// outlives these accounts.
func Read(owner Owner) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	err := fs.WalkDir(manifests.Policies(), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(manifests.Policies(), path)
		if err != nil {
			return err
		}
		found, err := parse(text, owner)
		if err != nil {
			return fmt.Errorf("read the manifest %s of admission policies: %w", path, err)
		}
		out = append(out, found...)
		return nil
	})
	return out, err
}

func parse(text []byte, owner Owner) (out []*unstructured.Unstructured, err error) {
	documents := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := documents.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		if object.Object == nil {
			continue // comments alone
		}
		if kind := object.GetKind(); kind != KindPolicy && kind != KindBinding {
			return nil, fmt.Errorf("an object of kind %q, want %s or %s", kind, KindPolicy, KindBinding)
		}
		inNamespace(object.Object, owner.Name)
		object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Namespace", Name: owner.Name, UID: owner.UID}})
		out = append(out, object)
	}
}

// inNamespace replaces the namespace of the manifests by another one in all texts. This happens
// after the file is parsed, because a name such as 123 would be parsed as a number.
func inNamespace(value any, namespace string) any {
	switch v := value.(type) {
	case string:
		return strings.ReplaceAll(v, manifestNamespace, namespace)
	case map[string]any:
		for key := range v {
			v[key] = inNamespace(v[key], namespace)
		}
	case []any:
		for i := range v {
			v[i] = inNamespace(v[i], namespace)
		}
	}
	return value
}

// Labels are those that a namespace needs to admit the agents' pods.
func Labels() map[string]string {
	return map[string]string{
		"pod-security.kubernetes.io/enforce": privileged,
		"pod-security.kubernetes.io/audit":   privileged,
		"pod-security.kubernetes.io/warn":    privileged,
	}
}

// Namespace returns what to apply to the controller's namespace: only the labels. The UID prevents
// it from being recreated.
func Namespace(owner Owner) *corev1ac.NamespaceApplyConfiguration {
	return corev1ac.Namespace(owner.Name).WithUID(owner.UID).WithLabels(Labels())
}
