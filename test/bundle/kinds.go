package bundle

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing/fstest"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/nodeproxy-io/nodeproxy/controllers/manifest"
)

// crds: each can be stored in one version, has a schema and no webhook.
func crds(b *Bundle) (wrong []string) {
	for _, c := range b.CRDs {
		stored := 0
		for _, v := range c.Spec.Versions {
			if v.Storage {
				stored++
			}
			wrong = append(wrong, violation(!hasSchema(&v) || v.Schema.OpenAPIV3Schema.Description == "",
				"%s, %s: there is no schema with a description", c.Name, v.Name)...)
		}
		wrong = append(wrong, violation(stored != 1, "%s: %d versions are stored", c.Name, stored)...)
		wrong = append(wrong, violation(c.Name != c.Spec.Names.Plural+"."+c.Spec.Group, "%s: the name is not that of its kind", c.Name)...)
		wrong = append(wrong, violation(c.Spec.PreserveUnknownFields, "%s: unknown fields are stored", c.Name)...)
		wrong = append(wrong, violation(c.Spec.Conversion != nil && c.Spec.Conversion.Strategy != apiextensionsv1.NoneConverter, "%s: versions are converted by a webhook", c.Name)...)
	}
	return wrong
}

func hasSchema(v *apiextensionsv1.CustomResourceDefinitionVersion) bool {
	return v.Schema != nil && v.Schema.OpenAPIV3Schema != nil
}

// ownedCRDs: the ClusterServiceVersion names exactly what is here, version by version.
func ownedCRDs(b *Bundle) (wrong []string) {
	key := func(name, kind, version string) string { return fmt.Sprintf("%s (%s), %s", name, kind, version) }
	owned, here := map[string]int{}, map[string]int{}
	for _, o := range b.CSV.Spec.CRDs.Owned {
		owned[key(o.Name, o.Kind, o.Version)]++
	}
	for _, c := range b.CRDs {
		for _, v := range c.Spec.Versions {
			here[key(c.Name, c.Spec.Names.Kind, v.Name)]++
		}
	}
	for _, name := range sortedKeys(owned) {
		wrong = append(wrong, violation(here[name] == 0, "%s is owned, and has no CRD here", name)...)
		wrong = append(wrong, violation(owned[name] > 1, "%s is owned %d times", name, owned[name])...)
	}
	for _, name := range sortedKeys(here) {
		wrong = append(wrong, violation(owned[name] == 0, "%s has a CRD here, and is not owned", name)...)
	}
	return wrong
}

// ownedDescriptions: what each kind is, and what it leads to.
func ownedDescriptions(b *Bundle) (wrong []string) {
	for _, o := range b.CSV.Spec.CRDs.Owned {
		wrong = append(wrong, violation(o.DisplayName == "" || o.Description == "", "%s has no displayName or description", o.Kind)...)
		wrong = append(wrong, violation(len(o.Resources) == 0, "%s has no resources", o.Kind)...)
		for _, r := range o.Resources {
			wrong = append(wrong, violation(r.Kind == "" || r.Version == "", "%s: a resource has no kind or version", o.Kind)...)
		}
	}
	return wrong
}

// written are the objects that the console offers to begin with.
func (b *Bundle) written() ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	err := json.Unmarshal([]byte(b.CSV.Annotations["alm-examples"]), &out)
	return out, err
}

// internal are the CRDs of which people write no objects.
func (b *Bundle) internal() (out []string, err error) {
	err = json.Unmarshal([]byte(b.CSV.Annotations["operators.operatorframework.io/internal-objects"]), &out)
	return out, err
}

// descriptors: every field that people write, or read, of what they write; and none
// that there is not.
func descriptors(b *Bundle) (wrong []string) {
	internal, err := b.internal()
	if err != nil {
		return violation(true, "internal-objects: %v", err)
	}
	for _, c := range b.CRDs {
		if slices.Contains(internal, c.Name) {
			continue
		}
		for _, v := range c.Spec.Versions {
			for _, o := range b.CSV.Spec.CRDs.Owned {
				if o.Name == c.Name && o.Version == v.Name && hasSchema(&v) {
					properties := v.Schema.OpenAPIV3Schema.Properties
					wrong = append(wrong, compare(o.Kind+" spec.", o.SpecDescriptors, properties["spec"])...)
					wrong = append(wrong, compare(o.Kind+" status.", o.StatusDescriptors, properties["status"])...)
				}
			}
		}
	}
	return wrong
}

func compare(of string, got []Descriptor, schema apiextensionsv1.JSONSchemaProps) (wrong []string) {
	want, seen := map[string]bool{}, map[string]bool{}
	fields(&schema, "", want)
	for _, d := range got {
		wrong = append(wrong, violation(d.DisplayName == "" || d.Description == "", "%s%s has no displayName or description", of, d.Path)...)
		wrong = append(wrong, violation(!want[d.Path], "%s%s is described, and there is no such field", of, d.Path)...)
		wrong = append(wrong, violation(seen[d.Path], "%s%s is described twice", of, d.Path)...)
		seen[d.Path] = true
	}
	for _, path := range sortedKeys(want) {
		wrong = append(wrong, violation(!seen[path], "%s%s is not described", of, path)...)
	}
	return wrong
}

// fields collects the paths of fields as consoles write them: those of the fields
// of a list with [0].
func fields(schema *apiextensionsv1.JSONSchemaProps, prefix string, into map[string]bool) {
	for name, props := range schema.Properties {
		into[prefix+name] = true
		fields(&props, prefix+name+".", into)
		if props.Items != nil && props.Items.Schema != nil {
			fields(props.Items.Schema, prefix+name+"[0].", into)
		}
	}
}

// internalObjects: consoles hide exactly the kinds that have no example.
func internalObjects(b *Bundle) (wrong []string) {
	internal, err := b.internal()
	objects, examplesErr := b.written()
	if err != nil || examplesErr != nil {
		return violation(true, "not JSON: %v, %v", err, examplesErr)
	}
	for _, name := range internal {
		isIt := func(o Owned) bool { return o.Name == name }
		wrong = append(wrong, violation(!slices.ContainsFunc(b.CSV.Spec.CRDs.Owned, isIt), "%s is hidden, and not owned", name)...)
	}
	for _, o := range b.CSV.Spec.CRDs.Owned {
		ofIt := func(u *unstructured.Unstructured) bool { return u.GetKind() == o.Kind }
		wrong = append(wrong, violation(slices.ContainsFunc(objects, ofIt) == slices.Contains(internal, o.Name),
			"%s is to be hidden or to have an example, and not both", o.Kind)...)
	}
	return wrong
}

// examples: one of each kind that people write, which the API server takes.
func examples(b *Bundle) (wrong []string) {
	objects, err := b.written()
	if err != nil {
		return violation(true, "the annotation alm-examples is not JSON: %v", err)
	}
	seen := map[string]int{}
	for _, o := range objects {
		seen[o.GetKind()]++
		isIt := func(owned Owned) bool {
			_, group, _ := strings.Cut(owned.Name, ".")
			return owned.Kind == o.GetKind() && o.GetAPIVersion() == group+"/"+owned.Version
		}
		wrong = append(wrong, violation(!slices.ContainsFunc(b.CSV.Spec.CRDs.Owned, isIt), "the example %s of %s is of no owned kind", o.GetKind(), o.GetAPIVersion())...)
		wrong = append(wrong, violation(seen[o.GetKind()] > 1, "there are several examples of %s", o.GetKind())...)
	}
	wrong = append(wrong, violation(len(objects) == 0, "there are no examples")...)
	// They are checked by the CRDs that come with them.
	for _, c := range b.CRDs {
		for i := range c.Spec.Versions {
			if !hasSchema(&c.Spec.Versions[i]) {
				return append(wrong, fmt.Sprintf("%s has no schema to check examples by", c.Name))
			}
		}
	}
	bases := fstest.MapFS{}
	for name, o := range b.Objects {
		if o.GetKind() == kindCRD {
			bases["bases/"+name[len(ManifestsDirectory)+1:]] = &fstest.MapFile{Data: b.Files[name]}
		}
	}
	list, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": objects})
	if err == nil {
		_, err = manifest.Parse(context.Background(), bases, []manifest.File{{Name: "alm-examples", Text: list}})
	}
	return append(wrong, violation(err != nil, "%v", err)...)
}

// exampleInAudit: who creates it without a change breaks nothing.
func exampleInAudit(b *Bundle) (wrong []string) {
	objects, err := b.written()
	if err != nil {
		return violation(true, "the annotation alm-examples is not JSON: %v", err)
	}
	for _, o := range objects {
		if o.GetKind() == "NodeProxy" {
			got, _, err := unstructured.NestedString(o.Object, "spec", "settings", "enforcement")
			return violation(got != "Audit", "the example of NodeProxy has enforcement %q: %v", got, err)
		}
	}
	return violation(true, "there is no example of NodeProxy")
}
