package admission

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	admissionv1ac "k8s.io/client-go/applyconfigurations/admissionregistration/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	manifests "github.com/nodeproxy-io/nodeproxy/config/admission"
)

// The label that selects the policies and their bindings.
const (
	LabelPartOf = "app.kubernetes.io/part-of"
	PartOf      = "nodeproxy"
)

// Kinds of the manifests.
const (
	KindPolicy  = "ValidatingAdmissionPolicy"
	KindBinding = "ValidatingAdmissionPolicyBinding"
)

// manifestNamespace is the namespace that the manifests name.
const manifestNamespace = "nodeproxy-system"

// privileged is the level of pod security that agents need for the network and directories of the
// node.
const privileged = "privileged"

// Owner is the namespace of the controller. The objects are deleted with it.
type Owner struct {
	Name string
	UID  types.UID
}

// Objects are the policies and their bindings.
type Objects struct {
	Policies []*admissionv1ac.ValidatingAdmissionPolicyApplyConfiguration
	Bindings []*admissionv1ac.ValidatingAdmissionPolicyBindingApplyConfiguration
}

// Read returns what to apply for a controller in a namespace: the embedded manifests with the
// service accounts of that namespace. The namespace owns the objects, so that none outlives these
// accounts.
func Read(owner Owner) (*Objects, error) {
	out := &Objects{}
	err := fs.WalkDir(manifests.Policies(), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		file, err := manifests.Policies().Open(path)
		if err == nil {
			err = errors.Join(out.add(file, owner), file.Close())
		}
		if err != nil {
			return fmt.Errorf("read the manifest %s of admission policies: %w", path, err)
		}
		return nil
	})
	return out, err
}

// add parses the objects of a file.
func (o *Objects) add(file io.Reader, owner Owner) error {
	documents := utilyaml.NewYAMLOrJSONDecoder(file, 4096)
	for {
		var object map[string]any
		err := documents.Decode(&object)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if object == nil {
			continue // comments alone
		}
		text, err := json.Marshal(inNamespace(object, owner.Name))
		if err != nil {
			return err
		}
		ties := metav1ac.OwnerReference().WithAPIVersion("v1").WithKind("Namespace").WithName(owner.Name).WithUID(owner.UID)
		switch kind := object["kind"]; kind {
		case KindPolicy:
			policy := &admissionv1ac.ValidatingAdmissionPolicyApplyConfiguration{}
			if err := json.Unmarshal(text, policy); err != nil {
				return err
			}
			o.Policies = append(o.Policies, policy.WithOwnerReferences(ties))
		case KindBinding:
			binding := &admissionv1ac.ValidatingAdmissionPolicyBindingApplyConfiguration{}
			if err := json.Unmarshal(text, binding); err != nil {
				return err
			}
			o.Bindings = append(o.Bindings, binding.WithOwnerReferences(ties))
		default:
			return fmt.Errorf("an object of kind %v, want %s or %s", kind, KindPolicy, KindBinding)
		}
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

// Namespace returns what to apply to the controller's namespace: only the labels. The UID keeps it
// from being recreated.
func Namespace(owner Owner) *corev1ac.NamespaceApplyConfiguration {
	return corev1ac.Namespace(owner.Name).WithUID(owner.UID).WithLabels(Labels())
}
