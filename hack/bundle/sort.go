package main

import (
	"errors"
	"fmt"
	"io"

	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// beside are the kinds that the bundle has beside the ClusterServiceVersion: of those
// that OLM accepts, the ones that nodeproxy uses.
var beside = map[string]bool{
	"ClusterRole.rbac.authorization.k8s.io": true,
	"PodDisruptionBudget.policy":            true,
}

// keptByController are the kinds that are not in the bundle, because the controller
// maintains such objects if it has the flag keepFlag.
var keptByController = map[string]bool{
	"ValidatingAdmissionPolicy.admissionregistration.k8s.io":        true,
	"ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io": true,
}

const keepFlag = "--manage-cluster-objects"

// objects are those of config/manifests, by what becomes of them.
type objects struct {
	version     *unstructured.Unstructured // the ClusterServiceVersion
	namespace   *unstructured.Unstructured
	deployments []*unstructured.Unstructured
	crds        []*crd
	beside      []*unstructured.Unstructured
	kept        []string // names of those that the controller maintains

	// Permissions are in the ClusterServiceVersion, by the account that has them.
	roles    map[roleKey]*unstructured.Unstructured
	bindings []binding
	accounts []string
}

// crd is a CustomResourceDefinition, and what was read of it.
type crd struct {
	*unstructured.Unstructured
	read apiextensionsv1.CustomResourceDefinition
}

// read returns the objects of a stream of YAML.
func read(from io.Reader) ([]*unstructured.Unstructured, error) {
	decoder := yaml.NewYAMLOrJSONDecoder(from, 4096)
	var out []*unstructured.Unstructured
	for {
		o := &unstructured.Unstructured{}
		err := decoder.Decode(o)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("object %d: %w", len(out)+1, err)
		}
		if len(o.Object) > 0 { // nothing but comments
			out = append(out, o)
		}
	}
}

// name is how errors name an object.
func name(o *unstructured.Unstructured) string { return o.GetKind() + " " + o.GetName() }

// kindOf is the kind with its group.
func kindOf(o *unstructured.Unstructured) string {
	return o.GetKind() + "." + o.GroupVersionKind().Group
}

// sort says what becomes of objects. The error joins all that is wrong.
func sort(all []*unstructured.Unstructured) (*objects, error) {
	out := &objects{roles: map[roleKey]*unstructured.Unstructured{}}
	var errs []error
	for _, o := range all {
		if err := out.take(o); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name(o), err))
		}
	}
	if out.version == nil {
		errs = append(errs, errors.New("there is no ClusterServiceVersion"))
	}
	if out.namespace == nil {
		errs = append(errs, errors.New("there is no Namespace, so it is not known which one to suggest"))
	}
	if len(out.deployments) == 0 {
		errs = append(errs, errors.New("there is no Deployment, so there is nothing that OLM could run"))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	for _, o := range all {
		if o.GetNamespace() != "" && o.GetNamespace() != out.namespace.GetName() {
			errs = append(errs, fmt.Errorf("%s is in namespace %s: OLM makes objects in the operator's own namespace only, which is %s here",
				name(o), o.GetNamespace(), out.namespace.GetName()))
		}
	}
	return out, errors.Join(errs...)
}

func (s *objects) take(o *unstructured.Unstructured) error {
	switch kind := kindOf(o); kind {
	case "ClusterServiceVersion.operators.coreos.com":
		return one(&s.version, o)
	case "Namespace.": // people make it, as the ClusterServiceVersion suggests
		return one(&s.namespace, o)
	case "Deployment.apps":
		if len(o.GetAnnotations()) > 0 {
			return errors.New("has annotations of its own, which a ClusterServiceVersion has no place for")
		}
		s.deployments = append(s.deployments, o)
	case "CustomResourceDefinition.apiextensions.k8s.io":
		c := &crd{Unstructured: o}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &c.read); err != nil {
			return err
		}
		s.crds = append(s.crds, c)
	case "ServiceAccount.":
		s.accounts = append(s.accounts, o.GetName())
	case "ClusterRole." + rbacv1.GroupName, "Role." + rbacv1.GroupName:
		s.roles[roleKey{kind: o.GetKind(), name: o.GetName()}] = o
	case "ClusterRoleBinding." + rbacv1.GroupName, "RoleBinding." + rbacv1.GroupName:
		b := binding{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &b); err != nil {
			return err
		}
		s.bindings = append(s.bindings, b)
	default:
		switch {
		case beside[kind]:
			s.beside = append(s.beside, o)
		case keptByController[kind]:
			s.kept = append(s.kept, name(o))
		default:
			return fmt.Errorf("%s cannot be in a bundle, or hack/bundle does not know what becomes of it there", kind)
		}
	}
	return nil
}

// one stores an object of a kind that may occur only once.
func one(at **unstructured.Unstructured, o *unstructured.Unstructured) error {
	if *at != nil {
		return fmt.Errorf("there is another one, %s", (*at).GetName())
	}
	*at = o
	return nil
}
