package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// roleKey names a role: there is no more than one namespace.
type roleKey struct{ kind, name string }

// binding is a RoleBinding or a ClusterRoleBinding.
type binding struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Subjects          []rbacv1.Subject `json:"subjects"`
	RoleRef           rbacv1.RoleRef   `json:"roleRef"`
}

// grants are the permissions of service accounts: clusterPermissions and permissions of the
// ClusterServiceVersion.
type grants struct{ cluster, namespace []any }

// granted follows bindings from roles to service accounts. Roles without a binding are for
// users; the bundle has them beside the ClusterServiceVersion.
func (s *objects) granted() (*grants, error) {
	var errs []error
	bound := map[roleKey]bool{}
	cluster, namespace := map[string][]any{}, map[string][]any{}
	for _, b := range s.bindings {
		of := roleKey{kind: b.RoleRef.Kind, name: b.RoleRef.Name}
		rules, err := s.rulesOf(of)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", b.Kind, b.Name, err))
			continue
		}
		bound[of] = true
		into := namespace
		if b.Kind == "ClusterRoleBinding" {
			into = cluster
		}
		for _, subject := range b.Subjects {
			if subject.Kind != rbacv1.ServiceAccountKind || subject.Namespace != s.namespace.GetName() || !slices.Contains(s.accounts, subject.Name) {
				errs = append(errs, fmt.Errorf("%s %s grants permissions to %s %s, but OLM grants them only to the operator's own service accounts",
					b.Kind, b.Name, subject.Kind, subject.Name))
				continue
			}
			into[subject.Name] = append(into[subject.Name], rules...)
		}
	}
	for _, account := range s.accounts {
		if len(cluster[account])+len(namespace[account]) == 0 {
			errs = append(errs, fmt.Errorf("ServiceAccount %s has no permissions, and OLM creates only accounts that have some", account))
		}
	}
	for key, role := range s.roles {
		if bound[key] {
			continue
		}
		if key.kind != "ClusterRole" {
			errs = append(errs, fmt.Errorf("%s %s has no binding", key.kind, key.name))
			continue
		}
		s.beside = append(s.beside, role)
	}
	return &grants{cluster: permissions(cluster), namespace: permissions(namespace)}, errors.Join(errs...)
}

// rulesOf returns the rules of a role as written.
func (s *objects) rulesOf(key roleKey) ([]any, error) {
	role := s.roles[key]
	if role == nil {
		return nil, fmt.Errorf("binds %s %s, which does not exist", key.kind, key.name)
	}
	if _, found := role.Object["aggregationRule"]; found {
		return nil, fmt.Errorf("binds ClusterRole %s, which aggregates others: a ClusterServiceVersion can only have rules", key.name)
	}
	rules, found, err := unstructured.NestedSlice(role.Object, "rules")
	if err != nil || !found {
		return nil, errors.Join(fmt.Errorf("binds %s %s, which has no rules", key.kind, key.name), err)
	}
	return rules, nil
}

// permissions has an entry for each service account.
func permissions(of map[string][]any) []any {
	var out []any
	for _, account := range slices.Sorted(maps.Keys(of)) {
		out = append(out, map[string]any{"serviceAccountName": account, "rules": of[account]})
	}
	return out
}
