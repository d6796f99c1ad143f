package main

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/version"
)

// comparison collects incompatible changes.
type comparison struct {
	where string // CRD and version
	found []string
}

// add reports a change of a field, or of the whole version with an empty path.
func (c *comparison) add(path, format string, args ...any) {
	where := c.where
	if path != "" {
		where += ", " + path
	}
	c.found = append(c.found, where+": "+fmt.Sprintf(format, args...)+".")
}

// compare returns a sentence for every incompatible change.
func compare(old, present map[string]*apiextensionsv1.CustomResourceDefinition) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(old)) {
		c := &comparison{where: name}
		if present[name] == nil {
			c.add("", "the CRD was removed, which deletes all its objects")
		} else {
			c.crd(&old[name].Spec, &present[name].Spec)
		}
		out = append(out, c.found...)
	}
	return out
}

func (c *comparison) crd(old, present *apiextensionsv1.CustomResourceDefinitionSpec) {
	for _, name := range []struct{ what, old, present string }{
		{"the group", old.Group, present.Group},
		{"the kind", old.Names.Kind, present.Names.Kind},
		{"the kind of lists", old.Names.ListKind, present.Names.ListKind},
		{"the plural", old.Names.Plural, present.Names.Plural},
		{"the singular", old.Names.Singular, present.Names.Singular},
		{"the scope", string(old.Scope), string(present.Scope)},
	} {
		if name.old != name.present {
			c.add("", "%s was %s and is %s, so references to it break", name.what, name.old, name.present)
		}
	}
	for what, names := range map[string][2][]string{
		"short name": {old.Names.ShortNames, present.Names.ShortNames},
		"category":   {old.Names.Categories, present.Names.Categories},
	} {
		for _, name := range missing(names[0], names[1]) {
			c.add("", "the %s %s was removed", what, name)
		}
	}
	c.stored(old, present)
	all := c.where
	for i := range old.Versions {
		v := &old.Versions[i]
		at := slices.IndexFunc(present.Versions, func(p apiextensionsv1.CustomResourceDefinitionVersion) bool { return p.Name == v.Name })
		c.where = all + " " + v.Name
		switch {
		case at < 0:
			c.add("", "the version was removed, so objects stored in it cannot be read")
		case v.Served && !present.Versions[at].Served:
			c.add("", "the version is no longer served")
		default:
			c.version(v, &present.Versions[at])
		}
	}
	c.where = all
}

// stored compares how objects that the last release has written are read.
func (c *comparison) stored(old, present *apiextensionsv1.CustomResourceDefinitionSpec) {
	if was, is := conversion(old), conversion(present); was != is {
		c.add("", "the conversion between versions was %s and is %s, so other versions are converted differently or not at all", was, is)
	}
	if was, is := storedVersion(old), storedVersion(present); version.CompareKubeAwareVersionStrings(is, was) < 0 {
		c.add("", "the storage version was %s and is %s, which is older", was, is)
	}
}

func conversion(of *apiextensionsv1.CustomResourceDefinitionSpec) apiextensionsv1.ConversionStrategyType {
	if of.Conversion == nil {
		return apiextensionsv1.NoneConverter
	}
	return of.Conversion.Strategy
}

func storedVersion(of *apiextensionsv1.CustomResourceDefinitionSpec) string {
	for _, v := range of.Versions {
		if v.Storage {
			return v.Name
		}
	}
	return ""
}

func (c *comparison) version(old, present *apiextensionsv1.CustomResourceDefinitionVersion) {
	if sub, now := old.Subresources, present.Subresources; sub != nil {
		if sub.Status != nil && (now == nil || now.Status == nil) {
			c.add("", "the status subresource was removed, so programs that write it fail")
		}
		if sub.Scale != nil && (now == nil || !reflect.DeepEqual(sub.Scale, now.Scale)) {
			c.add("", "the scale subresource was removed or changed")
		}
	}
	for _, column := range old.AdditionalPrinterColumns {
		same := func(p apiextensionsv1.CustomResourceColumnDefinition) bool {
			return p.Name == column.Name && p.JSONPath == column.JSONPath && p.Type == column.Type
		}
		at := slices.IndexFunc(present.AdditionalPrinterColumns, same)
		switch {
		case at < 0:
			c.add("", "the kubectl get column %s was removed or changed", column.Name)
		case column.Priority == 0 && present.AdditionalPrinterColumns[at].Priority > 0:
			c.add("", "the kubectl get column %s appears only with -o wide", column.Name)
		}
	}
	for _, field := range old.SelectableFields {
		if !slices.Contains(present.SelectableFields, field) {
			c.add("", "objects can no longer be selected by %s", field.JSONPath)
		}
	}
	switch {
	case old.Schema == nil || old.Schema.OpenAPIV3Schema == nil:
	case present.Schema == nil || present.Schema.OpenAPIV3Schema == nil:
		c.add("", "the schema was removed")
	default:
		c.schema("", old.Schema.OpenAPIV3Schema, present.Schema.OpenAPIV3Schema)
	}
}

// missing returns what the first list has and the second lacks.
func missing[T comparable](old, present []T) (out []T) {
	for _, x := range old {
		if !slices.Contains(present, x) {
			out = append(out, x)
		}
	}
	return out
}
