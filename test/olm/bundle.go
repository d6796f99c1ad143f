// Package olm installs, upgrades and removes an operator by its bundle, as OLM does
// it for an operator of all namespaces. OLM itself does not run in tests: this is
// what it makes of a bundle, in the same order, as far as the operator can notice.
package olm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Bundle is what is in the folder manifests of a bundle.
type Bundle struct {
	csv    clusterServiceVersion
	crds   []*unstructured.Unstructured
	beside []*unstructured.Unstructured
}

// clusterServiceVersion is what an installation goes by.
type clusterServiceVersion struct {
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Install struct {
			Spec struct {
				ClusterPermissions []permission `json:"clusterPermissions"`
				Permissions        []permission `json:"permissions"`
				Deployments        []deployment `json:"deployments"`
			} `json:"spec"`
		} `json:"install"`
	} `json:"spec"`
}

// permission is what a service account may do.
type permission struct {
	ServiceAccountName string              `json:"serviceAccountName"`
	Rules              []rbacv1.PolicyRule `json:"rules"`
}

type deployment struct {
	Name  string                `json:"name"`
	Label map[string]string     `json:"label"`
	Spec  appsv1.DeploymentSpec `json:"spec"`
}

// Read reads a bundle: the folder in which manifests is.
func Read(folder string) (*Bundle, error) {
	files, err := filepath.Glob(filepath.Join(folder, "manifests", "*.yaml"))
	if err != nil || len(files) == 0 {
		return nil, errors.Join(fmt.Errorf("%s holds no manifests", folder), err)
	}
	b := &Bundle{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if err := b.add(text); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	if b.csv.Name == "" || len(b.csv.Spec.Install.Spec.Deployments) == 0 {
		return nil, fmt.Errorf("%s: there is no ClusterServiceVersion with a Deployment", folder)
	}
	return b, nil
}

func (b *Bundle) add(text []byte) error {
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &object.Object); err != nil {
		return err
	}
	switch object.GetKind() {
	case "ClusterServiceVersion":
		return yaml.Unmarshal(text, &b.csv)
	case "CustomResourceDefinition":
		b.crds = append(b.crds, object)
	default:
		b.beside = append(b.beside, object)
	}
	return nil
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
