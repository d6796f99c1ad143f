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

// beside are the kinds that the bundle has beside the ClusterServiceVersion: those that
// nodeproxy uses and OLM accepts.
var beside = map[string]bool{
	"ClusterRole.rbac.authorization.k8s.io": true,
	"PodDisruptionBudget.policy":            true,
}

// maintainedByController are the kinds that are not in the bundle, because with maintainFlag the
// controller maintains these objects.
var maintainedByController = map[string]bool{
	"ValidatingAdmissionPolicy.admissionregistration.k8s.io":        true,
	"ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io": true,
}

// omitted are the kinds that OLM does not accept, and that nodeproxy also works without.
var omitted = map[string]bool{
	"FlowSchema.flowcontrol.apiserver.k8s.io":                 true,
	"PriorityLevelConfiguration.flowcontrol.apiserver.k8s.io": true,
}

const maintainFlag = "--manage-cluster-objects"

// objects are the objects of config/manifests by their place in the bundle.
type objects struct {
	version     *unstructured.Unstructured // the ClusterServiceVersion
	namespace   *unstructured.Unstructured
	deployments []*unstructured.Unstructured
	crds        []*crd
	beside      []*unstructured.Unstructured
	maintained  []string // names of objects that the controller maintains

	// Permissions are in the ClusterServiceVersion, by account.
	roles    map[roleKey]*unstructured.Unstructured
	bindings []binding
	accounts []string
}

// crd is a CustomResourceDefinition, also decoded.
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
		if len(o.Object) > 0 { // not only comments
			out = append(out, o)
		}
	}
}

// name identifies an object in errors.
func name(o *unstructured.Unstructured) string { return o.GetKind() + " " + o.GetName() }

// kindOf is the kind with its group.
func kindOf(o *unstructured.Unstructured) string {
	return o.GetKind() + "." + o.GroupVersionKind().Group
}

// sort puts objects into their place. The error joins all problems.
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
		errs = append(errs, errors.New("there is no Namespace to suggest"))
	}
	if len(out.deployments) == 0 {
		errs = append(errs, errors.New("there is no Deployment for OLM to run"))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	for _, o := range all {
		if o.GetNamespace() != "" && o.GetNamespace() != out.namespace.GetName() {
			errs = append(errs, fmt.Errorf("%s is in namespace %s: OLM creates objects only in the operator's own namespace, here %s",
				name(o), o.GetNamespace(), out.namespace.GetName()))
		}
	}
	return out, errors.Join(errs...)
}

func (s *objects) take(o *unstructured.Unstructured) error {
	switch kind := kindOf(o); kind {
	case "ClusterServiceVersion.operators.coreos.com":
		return one(&s.version, o)
	case "Namespace.": // users create it, as the ClusterServiceVersion suggests
		return one(&s.namespace, o)
	case "Deployment.apps":
		if len(o.GetAnnotations()) > 0 {
			return errors.New("has annotations, which a ClusterServiceVersion cannot have")
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
		case maintainedByController[kind]:
			s.maintained = append(s.maintained, name(o))
		case omitted[kind]:
		default:
			return fmt.Errorf("%s cannot be in a bundle, or hack/bundle does not support it", kind)
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
