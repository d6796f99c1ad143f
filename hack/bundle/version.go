package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// versionFile has the hand-written part of the ClusterServiceVersion.
const versionFile = "config/manifests/clusterserviceversion.yaml"

// agentImageVariable gives the controller the agents' image.
const agentImageVariable = "RELATED_IMAGE_AGENT"

// version describes a release.
type version struct {
	release, replaces, channel  string
	controllerImage, agentImage string
}

// csvName is OLM's name of a version.
func csvName(release string) string { return packageName + ".v" + release }

// clusterServiceVersion completes the hand-written part.
func (s *objects) clusterServiceVersion(in input) (map[string]any, error) {
	out := s.version.DeepCopy()
	annotations := out.GetAnnotations()
	grants, err := s.granted()
	errs := []error{err}
	owned, internal, err := s.owned(in.examples)
	errs = append(errs, err)
	deployments, err := s.install(in.version)
	errs = append(errs, err)

	for key, value := range map[string]any{
		"alm-examples": in.examples,
		"operatorframework.io/suggested-namespace-template": map[string]any{
			"apiVersion": s.namespace.GetAPIVersion(), "kind": s.namespace.GetKind(),
			"metadata": map[string]any{"name": s.namespace.GetName(), "labels": s.namespace.GetLabels()},
		},
		"operators.operatorframework.io/internal-objects": internal,
		"operatorframework.io/suggested-namespace":        s.namespace.GetName(),
		"containerImage": in.controllerImage,
	} {
		if _, found := annotations[key]; found {
			errs = append(errs, fmt.Errorf("%s: remove the annotation %s, which hack/bundle writes", versionFile, key))
		}
		text, isText := value.(string)
		if !isText {
			raw, err := json.MarshalIndent(value, "", "  ")
			errs = append(errs, err)
			text = string(raw)
		}
		annotations[key] = text
	}
	out.SetAnnotations(annotations)
	out.SetName(csvName(in.release))

	spec := map[string]any{
		"version": in.release,
		"icon":    []any{map[string]any{"base64data": base64.StdEncoding.EncodeToString(in.icon), "mediatype": "image/svg+xml"}},
		"install": map[string]any{"strategy": "deployment", "spec": map[string]any{
			"deployments": deployments, "clusterPermissions": grants.cluster, "permissions": grants.namespace,
		}},
		"relatedImages": []any{
			map[string]any{"name": "nodeproxy-agent", "image": in.agentImage},
			map[string]any{"name": "nodeproxy-controller", "image": in.controllerImage},
		},
	}
	if in.replaces != "" {
		spec["replaces"] = csvName(in.replaces)
	}
	for field, value := range spec {
		if _, found, _ := unstructured.NestedFieldNoCopy(out.Object, "spec", field); found {
			errs = append(errs, fmt.Errorf("%s: remove spec.%s, which hack/bundle writes", versionFile, field))
		}
		errs = append(errs, unstructured.SetNestedField(out.Object, value, "spec", field))
	}
	errs = append(errs, unstructured.SetNestedSlice(out.Object, owned, "spec", "customresourcedefinitions", "owned"))
	return out.Object, errors.Join(errs...)
}

// install has the Deployments, with the images of the release.
func (s *objects) install(v version) ([]any, error) {
	var out []any
	var errs []error
	named := false
	for _, d := range s.deployments {
		spec, _, err := unstructured.NestedMap(d.Object, "spec")
		errs = append(errs, err)
		containers, _, err := unstructured.NestedSlice(spec, "template", "spec", "containers")
		errs = append(errs, err)
		if len(s.deployments) != 1 || len(containers) != 1 {
			errs = append(errs, fmt.Errorf("%s: expected one Deployment with one container: hack/bundle does not know other images", name(d)))
			continue
		}
		container, _ := containers[0].(map[string]any)
		container["image"] = v.controllerImage
		args, _, err := unstructured.NestedStringSlice(container, "args")
		errs = append(errs, err)
		if len(s.maintained) > 0 && !slices.Contains(args, maintainFlag) {
			errs = append(errs, fmt.Errorf("%s lacks the flag %s, without which %s would be missing", name(d), maintainFlag, strings.Join(s.maintained, ", ")))
		}
		env, _, err := unstructured.NestedSlice(container, "env")
		errs = append(errs, err)
		for _, entry := range env {
			variable, _ := entry.(map[string]any)
			if variable["name"] == agentImageVariable {
				variable["value"], named = v.agentImage, true
			} else if text, _ := variable["name"].(string); strings.HasPrefix(text, "RELATED_IMAGE_") {
				errs = append(errs, fmt.Errorf("%s: hack/bundle does not know the image for the variable %s", name(d), text))
			}
		}
		errs = append(errs,
			unstructured.SetNestedSlice(container, env, "env"),
			unstructured.SetNestedSlice(spec, containers, "template", "spec", "containers"))
		labels := map[string]any{}
		for key, value := range d.GetLabels() {
			labels[key] = value
		}
		out = append(out, map[string]any{"name": d.GetName(), "label": labels, "spec": spec})
	}
	if !named {
		errs = append(errs, fmt.Errorf("the controller lacks the variable %s with the agents' image", agentImageVariable))
	}
	return out, errors.Join(errs...)
}

// owned returns an entry for each CRD, with the hand-written description of its kind, and
// the names of the CRDs that users do not write objects of: those without an example.
func (s *objects) owned(examples []*unstructured.Unstructured) (out []any, internal []string, err error) {
	written, _, err := unstructured.NestedSlice(s.version.Object, "spec", "customresourcedefinitions", "owned")
	errs := []error{err}
	byKind := map[string]map[string]any{}
	for _, entry := range written {
		fields, _ := entry.(map[string]any)
		kind, _ := fields["kind"].(string)
		byKind[kind] = fields
	}
	for _, c := range s.crds {
		kind := c.read.Spec.Names.Kind
		entry, found := byKind[kind]
		if !found {
			errs = append(errs, fmt.Errorf("%s: customresourcedefinitions.owned lacks %s", versionFile, kind))
			continue
		}
		delete(byKind, kind)
		isExample := func(o *unstructured.Unstructured) bool { return o.GetKind() == kind }
		people := slices.ContainsFunc(examples, isExample)
		if !people {
			internal = append(internal, c.GetName())
		}
		entries, err := c.owned(entry, people)
		errs = append(errs, err)
		out = append(out, entries...)
	}
	for kind := range byKind {
		errs = append(errs, fmt.Errorf("%s: customresourcedefinitions.owned has %s, which has no CRD", versionFile, kind))
	}
	slices.Sort(internal)
	return out, internal, errors.Join(errs...)
}

// owned has an entry for each served version.
func (c *crd) owned(written map[string]any, people bool) ([]any, error) {
	var out []any
	var errs []error
	for _, v := range c.read.Spec.Versions {
		if !v.Served || v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
			continue
		}
		schema := v.Schema.OpenAPIV3Schema
		entry := map[string]any{
			"name": c.GetName(), "version": v.Name,
			"description": strings.Join(strings.Fields(schema.Description), " "),
		}
		maps.Copy(entry, written)
		for _, under := range []string{"spec", "status"} {
			props := schema.Properties[under]
			if !people {
				continue
			}
			fields, err := describe(c.read.Spec.Names.Kind, under, &props)
			errs = append(errs, err)
			entry[under+"Descriptors"] = fields
		}
		out = append(out, entry)
	}
	return out, errors.Join(errs...)
}
