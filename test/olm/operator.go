package olm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/test/bundle"
	"github.com/nodeproxy-io/nodeproxy/test/install"
)

// ownerLabel is on everything that goes with a ClusterServiceVersion.
const ownerLabel = "olm.owner"

const fieldOwner = client.FieldOwner("olm")

// Operator is an installation.
type Operator struct {
	// Client is an administrator's.
	Client client.Client
	// Namespace is that of the Subscription. It has to exist.
	Namespace string
	// Env is spec.config.env of the Subscription.
	Env []corev1.EnvVar
}

// Install installs a bundle, or upgrades to it: what the version before had and
// this one has not goes once the Deployment is up to date.
func (o *Operator) Install(ctx context.Context, b *Bundle) error {
	for _, crd := range b.crds { // they belong to no version
		if err := o.apply(ctx, crd.DeepCopy()); err != nil {
			return err
		}
	}
	for _, beside := range b.beside {
		object := beside.DeepCopy()
		if object.GetKind() != "ClusterRole" { // OLM's plan gives what is cluster-scoped no owner
			object = o.owned(b, object)
		}
		if err := o.apply(ctx, object); err != nil {
			return err
		}
	}
	if err := o.givePermissions(ctx, b); err != nil {
		return err
	}
	for _, d := range b.csv.Spec.Install.Spec.Deployments {
		if err := o.deploy(ctx, b, d); err != nil {
			return err
		}
	}
	if err := install.Until(ctx, 3*time.Minute, func(ctx context.Context) error { return o.deployed(ctx, b) }); err != nil {
		return err
	}
	return o.removeOwned(ctx, ownerLabel+"!="+b.Name())
}

// Remove removes what belongs to the ClusterServiceVersion. CRDs, ClusterRoles of the
// bundle's manifests and the namespace stay until an administrator deletes them.
func (o *Operator) Remove(ctx context.Context, b *Bundle) error {
	return o.removeOwned(ctx, ownerLabel+"="+b.Name())
}

// owned puts an object into the namespace, and marks whose it is.
func (o *Operator) owned(b *Bundle, object *unstructured.Unstructured) *unstructured.Unstructured {
	labels := maps.Clone(object.GetLabels())
	if labels == nil {
		labels = map[string]string{}
	}
	labels[ownerLabel] = b.Name()
	object.SetLabels(labels)
	if object.GetKind() == "PodDisruptionBudget" { // of those that a bundle may hold
		object.SetNamespace(o.Namespace)
	}
	return object
}

func (o *Operator) apply(ctx context.Context, object *unstructured.Unstructured) error {
	err := o.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), fieldOwner, client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	return nil
}

// applyTyped applies an object of a built-in kind that goes with a version.
func (o *Operator) applyTyped(ctx context.Context, b *Bundle, object client.Object) error {
	kinds, _, err := o.Client.Scheme().ObjectKinds(object)
	if err != nil {
		return err
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{Object: fields}
	u.SetGroupVersionKind(kinds[0])
	unstructured.RemoveNestedField(u.Object, "status")
	return o.apply(ctx, o.owned(b, u))
}

// givePermissions makes service accounts with roles of this version's own. For an
// operator of all namespaces OLM makes a ClusterRole of each Role besides, which
// can read namespaces, too.
func (o *Operator) givePermissions(ctx context.Context, b *Bundle) error {
	strategy := &b.csv.Spec.Install.Spec
	var objects []client.Object
	for _, p := range strategy.Permissions {
		name := b.Name() + "-" + p.ServiceAccountName
		meta := metav1.ObjectMeta{Namespace: o.Namespace, Name: name}
		lifted := append(append([]rbacv1.PolicyRule{}, p.Rules...), rbacv1.PolicyRule{
			APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"get", "list", "watch"},
		})
		objects = append(objects,
			&rbacv1.Role{ObjectMeta: meta, Rules: p.Rules},
			&rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: roleRef("Role", name), Subjects: o.subjects(p)},
			&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: lifted},
			&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: roleRef("ClusterRole", name), Subjects: o.subjects(p)},
		)
	}
	for _, p := range strategy.ClusterPermissions {
		name := b.Name() + "-" + p.ServiceAccountName + "-cluster"
		meta := metav1.ObjectMeta{Name: name}
		objects = append(objects,
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: p.ServiceAccountName}},
			&rbacv1.ClusterRole{ObjectMeta: meta, Rules: p.Rules},
			&rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: roleRef("ClusterRole", name), Subjects: o.subjects(p)},
		)
	}
	for _, object := range objects {
		if err := o.applyTyped(ctx, b, object); err != nil {
			return err
		}
	}
	return nil
}

func roleRef(kind, name string) rbacv1.RoleRef {
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
}

func (o *Operator) subjects(p bundle.Permissions) []rbacv1.Subject {
	return []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: o.Namespace, Name: p.ServiceAccountName}}
}

// deploy makes a Deployment with what OLM adds: annotations, a variable of its own,
// and those of the Subscription.
func (o *Operator) deploy(ctx context.Context, b *Bundle, d bundle.Deployment) error {
	spec := *d.Spec.DeepCopy()
	if spec.Template.Annotations == nil {
		spec.Template.Annotations = map[string]string{}
	}
	maps.Copy(spec.Template.Annotations, b.csv.Annotations)
	maps.Copy(spec.Template.Annotations, map[string]string{
		"olm.targetNamespaces": "", "olm.operatorNamespace": o.Namespace, "olm.operatorGroup": "global",
	})
	env := append([]corev1.EnvVar{{Name: "OPERATOR_CONDITION_NAME", Value: b.Name()}}, o.Env...)
	for i := range spec.Template.Spec.Containers {
		c := &spec.Template.Spec.Containers[i]
		c.Env = append(c.Env, env...)
	}
	return o.applyTyped(ctx, b, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: d.Name, Labels: d.Label}, Spec: spec,
	})
}

// deployed returns nil when each Deployment is up to date and available.
func (o *Operator) deployed(ctx context.Context, b *Bundle) error {
	for _, d := range b.csv.Spec.Install.Spec.Deployments {
		now := &appsv1.Deployment{}
		if err := o.Client.Get(ctx, client.ObjectKey{Namespace: o.Namespace, Name: d.Name}, now); err != nil {
			return err
		}
		s := now.Status
		if s.ObservedGeneration < now.Generation || s.UpdatedReplicas < *now.Spec.Replicas || s.AvailableReplicas < *now.Spec.Replicas {
			return fmt.Errorf("of Deployment %s %d pods of %d are up to date, and %d available", d.Name, s.UpdatedReplicas, *now.Spec.Replicas, s.AvailableReplicas)
		}
	}
	return nil
}

// removeOwned deletes what belongs to a version.
func (o *Operator) removeOwned(ctx context.Context, selector string) error {
	var errs []error
	for _, kind := range []client.Object{
		&appsv1.Deployment{}, &policyv1.PodDisruptionBudget{}, &corev1.ServiceAccount{},
		&rbacv1.RoleBinding{}, &rbacv1.Role{}, &rbacv1.ClusterRoleBinding{}, &rbacv1.ClusterRole{},
	} {
		// One without such a label has no owner.
		options := &client.DeleteAllOfOptions{ListOptions: client.ListOptions{Raw: &metav1.ListOptions{LabelSelector: ownerLabel + "," + selector}}}
		switch kind.(type) {
		case *rbacv1.ClusterRole, *rbacv1.ClusterRoleBinding:
		default:
			options.Namespace = o.Namespace
		}
		options.PropagationPolicy = new(metav1.DeletePropagationBackground)
		if err := o.Client.DeleteAllOf(ctx, kind, options); err != nil {
			errs = append(errs, fmt.Errorf("delete %T of %s: %w", kind, selector, err))
		}
	}
	return errors.Join(errs...)
}
