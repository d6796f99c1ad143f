// Package admission says what the controller keeps of the cluster itself, where
// whoever installs it cannot carry that: the admission policies, and the labels by
// which its namespace takes the agents' pods. It is pure.
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

// The label by which the policies and their bindings are found.
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

// privileged is the level of pod security that the network and the folders of the
// node need.
const privileged = "privileged"

// Owner is the namespace of the controller. What is kept goes when it does.
type Owner struct {
	Name string
	UID  types.UID
}

// Objects are the policies and their bindings.
type Objects struct {
	Policies []*admissionv1ac.ValidatingAdmissionPolicyApplyConfiguration
	Bindings []*admissionv1ac.ValidatingAdmissionPolicyBindingApplyConfiguration
}

// Read returns what to apply for a controller in a namespace: the embedded
// manifests, which then are about the service accounts there. The namespace owns
// them, so that none outlives the accounts that it names.
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

// add reads the objects of a file.
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

// inNamespace puts a namespace in the place of that of the manifests, in all texts.
// They are replaced after the file is read, because a name such as 123 would be
// read as a number.
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

// Labels are those that a namespace needs so that it takes the agents' pods.
func Labels() map[string]string {
	return map[string]string{
		"pod-security.kubernetes.io/enforce": privileged,
		"pod-security.kubernetes.io/audit":   privileged,
		"pod-security.kubernetes.io/warn":    privileged,
	}
}

// Namespace returns what to apply to the controller's namespace: the labels and
// nothing else. The UID keeps it from being made anew.
func Namespace(owner Owner) *corev1ac.NamespaceApplyConfiguration {
	return corev1ac.Namespace(owner.Name).WithUID(owner.UID).WithLabels(Labels())
}
