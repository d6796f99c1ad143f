package bundle

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Paths in the directory that a bundle is in.
const (
	Dockerfile         = "bundle.Dockerfile"
	ManifestsDirectory = "bundle/manifests"
	metadataFile       = "bundle/metadata/annotations.yaml"
	scorecardFile      = "bundle/tests/scorecard/config.yaml"
)

// Kinds of a bundle that are looked at closely.
const (
	kindCSV     = "ClusterServiceVersion"
	kindCRD     = "CustomResourceDefinition"
	kindAccount = "ServiceAccount"
)

// Bundle is what is in a bundle.
type Bundle struct {
	// Files are those of the bundle and its Dockerfile, by their paths.
	Files map[string][]byte
	// Objects are all manifests, by their files.
	Objects map[string]*unstructured.Unstructured
	CSV     ClusterServiceVersion
	CRDs    []apiextensionsv1.CustomResourceDefinition
	// Annotations are those of the metadata, Labels those of the Dockerfile.
	Annotations, Labels map[string]string
}

// ClusterServiceVersion is as much of one as there are rules for.
type ClusterServiceVersion struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		DisplayName        string                          `json:"displayName"`
		Description        string                          `json:"description"`
		Version            string                          `json:"version"`
		Replaces           string                          `json:"replaces"`
		MinKubeVersion     string                          `json:"minKubeVersion"`
		Maturity           string                          `json:"maturity"`
		Icon               []Icon                          `json:"icon"`
		Keywords           []string                        `json:"keywords"`
		Links              []Named                         `json:"links"`
		Maintainers        []Named                         `json:"maintainers"`
		Provider           Named                           `json:"provider"`
		InstallModes       []InstallMode                   `json:"installModes"`
		Install            Install                         `json:"install"`
		CRDs               struct{ Owned []Owned }         `json:"customresourcedefinitions"`
		RelatedImages      []Named                         `json:"relatedImages"`
		WebhookDefinitions []any                           `json:"webhookdefinitions"`
		APIServices        struct{ Owned, Required []any } `json:"apiservicedefinitions"`
	} `json:"spec"`
}

// Named is something with a name, and where it is found.
type Named struct {
	Name  string `json:"name"`
	URL   string `json:"url"`
	Email string `json:"email"`
	Image string `json:"image"`
}

// Icon is a picture.
type Icon struct {
	Data      string `json:"base64data"`
	MediaType string `json:"mediatype"`
}

// InstallMode states which namespaces an operator may be asked to watch.
type InstallMode struct {
	Type      string `json:"type"`
	Supported bool   `json:"supported"`
}

// Install is what OLM makes.
type Install struct {
	Strategy string `json:"strategy"`
	Spec     struct {
		Deployments        []Deployment  `json:"deployments"`
		ClusterPermissions []Permissions `json:"clusterPermissions"`
		Permissions        []Permissions `json:"permissions"`
	} `json:"spec"`
}

// Deployment is one that OLM makes.
type Deployment struct {
	Name  string                `json:"name"`
	Label map[string]string     `json:"label"`
	Spec  appsv1.DeploymentSpec `json:"spec"`
}

// Permissions are those that OLM gives to a service account, which it makes.
type Permissions struct {
	ServiceAccountName string              `json:"serviceAccountName"`
	Rules              []rbacv1.PolicyRule `json:"rules"`
}

// Owned states what consoles show of a kind.
type Owned struct {
	Name              string       `json:"name"`
	Kind              string       `json:"kind"`
	Version           string       `json:"version"`
	DisplayName       string       `json:"displayName"`
	Description       string       `json:"description"`
	Resources         []Resource   `json:"resources"`
	SpecDescriptors   []Descriptor `json:"specDescriptors"`
	StatusDescriptors []Descriptor `json:"statusDescriptors"`
}

// Resource is what an object of a kind leads to.
type Resource struct {
	Kind    string `json:"kind"`
	Version string `json:"version"`
}

// Descriptor states what consoles show of a field.
type Descriptor struct {
	Path        string `json:"path"`
	DisplayName string `json:"displayName"`
	Description string `json:"description"`
}

// Files returns the files of a bundle in a directory, by their paths.
func Files(directory fs.FS) (map[string][]byte, error) {
	out := map[string][]byte{}
	read := func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		out[name], err = fs.ReadFile(directory, name)
		return err
	}
	return out, errors.Join(fs.WalkDir(directory, "bundle", read), fs.WalkDir(directory, Dockerfile, read))
}

// Parse reads files as Files returns them.
func Parse(files map[string][]byte) (*Bundle, error) {
	b := &Bundle{Files: files, Objects: map[string]*unstructured.Unstructured{}, Labels: imageLabels(files[Dockerfile])}
	var errs []error
	found := false
	for name, text := range files {
		if path.Dir(name) != ManifestsDirectory {
			continue
		}
		o := &unstructured.Unstructured{}
		err := yaml.UnmarshalStrict(text, &o.Object)
		if err == nil {
			b.Objects[name] = o
			switch o.GetKind() {
			case kindCSV:
				found = true
				err = yaml.Unmarshal(text, &b.CSV)
			case kindCRD:
				crd := apiextensionsv1.CustomResourceDefinition{}
				err = yaml.UnmarshalStrict(text, &crd)
				b.CRDs = append(b.CRDs, crd)
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	if !found {
		errs = append(errs, errors.New("there is no ClusterServiceVersion"))
	}
	metadata := struct{ Annotations map[string]string }{}
	if err := yaml.UnmarshalStrict(files[metadataFile], &metadata); err != nil {
		errs = append(errs, fmt.Errorf("%s: %w", metadataFile, err))
	}
	b.Annotations = metadata.Annotations
	return b, errors.Join(errs...)
}

// label matches one of a Dockerfile.
var label = regexp.MustCompile(`(?m)^LABEL ([^=\s]+)=(\S*)$`)

func imageLabels(dockerfile []byte) map[string]string {
	out := map[string]string{}
	for _, found := range label.FindAllSubmatch(dockerfile, -1) {
		out[string(found[1])] = string(bytes.Trim(found[2], `"`))
	}
	return out
}

// Directory is that which a path of a bundle is in, without the directory bundle.
func Directory(name string) string { return strings.TrimPrefix(path.Dir(name), "bundle/") }
