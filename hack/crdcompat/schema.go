package main

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// schemaProps are those of one field.
type schemaProps = apiextensionsv1.JSONSchemaProps

// schema compares a field, and the fields in it.
func (c *comparison) schema(path string, old, present *schemaProps) {
	c.form(path, old, present)
	c.defaults(path, old, present)
	c.enum(path, old, present)
	c.bounds(path, old, present)
	c.texts(path, old, present)
	c.lists(path, old, present)
	c.rules(path, old, present)
	c.combinators(path, old, present)
	c.properties(path, old, present)
	c.inside(path, old, present)
}

// form compares the kind of value.
func (c *comparison) form(path string, old, present *schemaProps) {
	switch {
	case old.XIntOrString != present.XIntOrString:
		c.add(path, "x-kubernetes-int-or-string was %t and is %t", old.XIntOrString, present.XIntOrString)
	case old.Type != present.Type:
		c.add(path, "the type was %s and is %s", old.Type, present.Type)
	}
	if old.Nullable && !present.Nullable {
		c.add(path, "null is no longer allowed")
	}
	if isTrue(old.XPreserveUnknownFields) && !isTrue(present.XPreserveUnknownFields) {
		c.add(path, "unknown fields are now dropped")
	}
	if !old.XEmbeddedResource && present.XEmbeddedResource {
		c.add(path, "it must now be a complete object with apiVersion and kind")
	}
}

func isTrue(b *bool) bool { return b != nil && *b }

// raw is a JSON value as written, or "none".
func raw(value *apiextensionsv1.JSON) string {
	if value == nil {
		return "none"
	}
	return string(value.Raw)
}

// defaults compares what an absent field means.
func (c *comparison) defaults(path string, old, present *schemaProps) {
	if raw(old.Default) != raw(present.Default) {
		c.add(path, "the default was %s and is %s, so objects without the field change their meaning", raw(old.Default), raw(present.Default))
	}
}

// enum checks that allowed values still are allowed.
func (c *comparison) enum(path string, old, present *schemaProps) {
	if len(present.Enum) == 0 {
		return
	}
	if len(old.Enum) == 0 {
		c.add(path, "only some values are now allowed")
		return
	}
	values := func(of []apiextensionsv1.JSON) (out []string) {
		for _, v := range of {
			out = append(out, string(v.Raw))
		}
		return out
	}
	for _, value := range missing(values(old.Enum), values(present.Enum)) {
		c.add(path, "the value %s is no longer allowed", value)
	}
}

// valueBounds are the minimum and maximum that a schema allows. A format is a bound, too: API
// servers deny values outside it, or no client can read them.
func valueBounds(of *schemaProps) (minimum, maximum *float64) {
	minimum, maximum = of.Minimum, of.Maximum
	if of.Format != "int32" {
		return minimum, maximum
	}
	if minimum == nil {
		minimum = new(float64(math.MinInt32))
	}
	if maximum == nil {
		maximum = new(float64(math.MaxInt32))
	}
	return minimum, maximum
}

// bounds checks that allowed numbers, lengths and sizes still are allowed.
func (c *comparison) bounds(path string, old, present *schemaProps) {
	minimum, maximum := valueBounds(old)
	atLeast(c, path, "value", minimum, present.Minimum)
	atMost(c, path, "value", maximum, present.Maximum)
	minCount(c, path, "length", old.MinLength, present.MinLength)
	atMost(c, path, "length", old.MaxLength, present.MaxLength)
	minCount(c, path, "number of items", old.MinItems, present.MinItems)
	atMost(c, path, "number of items", old.MaxItems, present.MaxItems)
	minCount(c, path, "number of entries", old.MinProperties, present.MinProperties)
	atMost(c, path, "number of entries", old.MaxProperties, present.MaxProperties)
	if present.ExclusiveMinimum && !old.ExclusiveMinimum && equal(old.Minimum, present.Minimum) {
		c.add(path, "the minimum itself is no longer allowed")
	}
	if present.ExclusiveMaximum && !old.ExclusiveMaximum && equal(old.Maximum, present.Maximum) {
		c.add(path, "the maximum itself is no longer allowed")
	}
	if present.MultipleOf != nil && !equal(old.MultipleOf, present.MultipleOf) {
		c.add(path, "only multiples of %v are now allowed", *present.MultipleOf)
	}
}

func equal[T comparable](a, b *T) bool { return a != nil && b != nil && *a == *b }

func atLeast[T cmp.Ordered](c *comparison, path, what string, old, present *T) {
	if present == nil || old != nil && *present <= *old {
		return
	}
	c.add(path, "the minimum %s is now %v %s", what, *present, before(old))
}

// minCount is atLeast for counts, which are never negative.
func minCount(c *comparison, path, what string, old, present *int64) {
	if present != nil && *present > 0 {
		atLeast(c, path, what, old, present)
	}
}

func atMost[T cmp.Ordered](c *comparison, path, what string, old, present *T) {
	if present == nil || old != nil && *present >= *old {
		return
	}
	c.add(path, "the maximum %s is now %v %s", what, *present, before(old))
}

func before[T cmp.Ordered](old *T) string {
	if old == nil {
		return "(was unlimited)"
	}
	return fmt.Sprintf("(was %v)", *old)
}

// texts reports every new pattern: whether it accepts all that the old one did is undecidable
// here.
func (c *comparison) texts(path string, old, present *schemaProps) {
	if present.Pattern != "" && old.Pattern != present.Pattern {
		c.add(path, "the pattern %q is new; stored values may violate it", present.Pattern)
	}
	if present.Format != "" && old.Format != present.Format {
		c.add(path, "the format %s is new", present.Format)
	}
}

// lists compares how lists and maps are merged, which decides who owns what.
func (c *comparison) lists(path string, old, present *schemaProps) {
	for _, kind := range []struct {
		what         string
		old, present *string
	}{
		{"list", old.XListType, present.XListType}, {"map", old.XMapType, present.XMapType},
	} {
		if orNone(kind.old) != orNone(kind.present) {
			c.add(path, "the %s type was %s and is %s, so changes are merged differently", kind.what, orNone(kind.old), orNone(kind.present))
		}
	}
	if !slices.Equal(old.XListMapKeys, present.XListMapKeys) {
		c.add(path, "the list keys were %q and are %q", old.XListMapKeys, present.XListMapKeys)
	}
	if present.UniqueItems && !old.UniqueItems {
		c.add(path, "items must now be unique")
	}
}

func orNone(s *string) string {
	if s == nil {
		return "none"
	}
	return *s
}

// rules compares CEL rules by their text.
func (c *comparison) rules(path string, old, present *schemaProps) {
	for _, rule := range present.XValidations {
		same := func(o apiextensionsv1.ValidationRule) bool {
			return o.Rule == rule.Rule && isTrue(o.OptionalOldSelf) == isTrue(rule.OptionalOldSelf)
		}
		if !slices.ContainsFunc(old.XValidations, same) {
			c.add(path, "the rule %q is new; stored values may violate it", rule.Rule)
		}
	}
}

// combinators reports new and changed alternatives.
func (c *comparison) combinators(path string, old, present *schemaProps) {
	for _, list := range []struct {
		what         string
		old, present []schemaProps
	}{
		{"allOf", old.AllOf, present.AllOf}, {"anyOf", old.AnyOf, present.AnyOf}, {"oneOf", old.OneOf, present.OneOf},
	} {
		if len(list.present) > 0 && !reflect.DeepEqual(list.old, list.present) {
			c.add(path, "%s has changed", list.what)
		}
	}
	if present.Not != nil && !reflect.DeepEqual(old.Not, present.Not) {
		c.add(path, "not has changed")
	}
}

// properties checks that old fields still exist and that no other field is newly required.
func (c *comparison) properties(path string, old, present *schemaProps) {
	for _, name := range slices.Sorted(maps.Keys(old.Properties)) {
		was, field := old.Properties[name], join(path, name)
		is, found := present.Properties[name]
		if !found {
			c.add(field, "the field was removed, with its stored values")
			continue
		}
		c.schema(field, &was, &is)
	}
	c.newFields(path, old, present)
	for _, name := range missing(present.Required, old.Required) {
		is := present.Properties[name]
		if is.Default == nil {
			c.add(join(path, name), "the field is now required")
		}
	}
}

// newFields checks new fields: objects may already have values under their names.
func (c *comparison) newFields(path string, old, present *schemaProps) {
	for _, name := range slices.Sorted(maps.Keys(present.Properties)) {
		if _, found := old.Properties[name]; found {
			continue
		}
		is, field, entries := present.Properties[name], join(path, name), old.AdditionalProperties
		switch {
		case field == "metadata" || path == "metadata": // objects have names without a schema
			c.schema(field, &schemaProps{Type: is.Type}, &is)
		case entries != nil && entries.Schema != nil:
			c.schema(field, entries.Schema, &is)
		case isTrue(old.XPreserveUnknownFields) || entries != nil && entries.Allows:
			c.add(field, "it now has a schema; anything was allowed before")
		}
	}
}

// inside compares items of lists and values of maps.
func (c *comparison) inside(path string, old, present *schemaProps) {
	switch was, is := items(old), items(present); {
	case is == nil:
	case was == nil:
		c.add(path, "its items now have a schema")
	default:
		c.schema(path+"[]", was, is)
	}
	was, is := old.AdditionalProperties, present.AdditionalProperties
	switch {
	case was == nil && is == nil:
	case was != nil && was.Allows && (is == nil || !is.Allows):
		c.add(path, "unknown keys are no longer allowed")
	case was != nil && was.Schema != nil && is != nil && is.Schema != nil:
		c.schema(path+"{}", was.Schema, is.Schema)
	case is != nil && is.Schema != nil && (was != nil || isTrue(old.XPreserveUnknownFields)):
		c.add(path, "its values now have a schema")
	}
}

func items(of *schemaProps) *schemaProps {
	if of.Items == nil {
		return nil
	}
	return of.Items.Schema
}

func join(path, name string) string { return strings.TrimPrefix(path+"."+name, ".") }
