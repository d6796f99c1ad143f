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

// say adds a sentence about a field; "" is the whole.
func (c *comparison) say(path, format string, args ...any) {
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
			c.say("", "the CRD is gone, and all objects of the kind go with it")
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
			c.say("", "%s was %s and is %s, so what names it finds it no more", name.what, name.old, name.present)
		}
	}
	for what, names := range map[string][2][]string{
		"short name": {old.Names.ShortNames, present.Names.ShortNames},
		"category":   {old.Names.Categories, present.Names.Categories},
	} {
		for _, name := range gone(names[0], names[1]) {
			c.say("", "the %s %s is gone", what, name)
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
			c.say("", "the version is gone, so objects that are stored in it cannot be read")
		case v.Served && !present.Versions[at].Served:
			c.say("", "the version is not served any more")
		default:
			c.version(v, &present.Versions[at])
		}
	}
	c.where = all
}

// stored: how objects are read that the last release has written.
func (c *comparison) stored(old, present *apiextensionsv1.CustomResourceDefinitionSpec) {
	if was, is := conversion(old), conversion(present); was != is {
		c.say("", "the conversion between versions was %s and is %s, so objects of another version are read in another way, or not at all", was, is)
	}
	if was, is := storedVersion(old), storedVersion(present); version.CompareKubeAwareVersionStrings(is, was) < 0 {
		c.say("", "objects were stored in the version %s and are in %s, which is the older one", was, is)
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
			c.say("", "the subresource status is gone, so programs that write it fail")
		}
		if sub.Scale != nil && (now == nil || !reflect.DeepEqual(sub.Scale, now.Scale)) {
			c.say("", "the subresource scale is gone or another one")
		}
	}
	for _, column := range old.AdditionalPrinterColumns {
		same := func(p apiextensionsv1.CustomResourceColumnDefinition) bool {
			return p.Name == column.Name && p.JSONPath == column.JSONPath && p.Type == column.Type
		}
		at := slices.IndexFunc(present.AdditionalPrinterColumns, same)
		switch {
		case at < 0:
			c.say("", "the column %s of kubectl get is gone, or shows something else", column.Name)
		case column.Priority == 0 && present.AdditionalPrinterColumns[at].Priority > 0:
			c.say("", "the column %s is shown by kubectl get -o wide only", column.Name)
		}
	}
	for _, field := range old.SelectableFields {
		if !slices.Contains(present.SelectableFields, field) {
			c.say("", "objects cannot be selected by %s any more", field.JSONPath)
		}
	}
	switch {
	case old.Schema == nil || old.Schema.OpenAPIV3Schema == nil:
	case present.Schema == nil || present.Schema.OpenAPIV3Schema == nil:
		c.say("", "the schema is gone")
	default:
		c.schema("", old.Schema.OpenAPIV3Schema, present.Schema.OpenAPIV3Schema)
	}
}

// gone returns what is in one list and not in another.
func gone[T comparable](old, present []T) (out []T) {
	for _, x := range old {
		if !slices.Contains(present, x) {
			out = append(out, x)
		}
	}
	return out
}
