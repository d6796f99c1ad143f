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
	c.junctors(path, old, present)
	c.properties(path, old, present)
	c.inside(path, old, present)
}

// form: what kind of value it is.
func (c *comparison) form(path string, old, present *schemaProps) {
	switch {
	case old.XIntOrString != present.XIntOrString:
		c.say(path, "it takes a number or a text: %t before, %t now", old.XIntOrString, present.XIntOrString)
	case old.Type != present.Type:
		c.say(path, "its type was %s and is %s", old.Type, present.Type)
	}
	if old.Nullable && !present.Nullable {
		c.say(path, "null is not allowed any more")
	}
	if isTrue(old.XPreserveUnknownFields) && !isTrue(present.XPreserveUnknownFields) {
		c.say(path, "fields that are not in the schema are dropped now")
	}
	if !old.XEmbeddedResource && present.XEmbeddedResource {
		c.say(path, "it must be a whole object now, with apiVersion and kind")
	}
}

func isTrue(b *bool) bool { return b != nil && *b }

// raw is a JSON value as it is written, or "none".
func raw(value *apiextensionsv1.JSON) string {
	if value == nil {
		return "none"
	}
	return string(value.Raw)
}

// defaults: what an object means that does not say it.
func (c *comparison) defaults(path string, old, present *schemaProps) {
	if raw(old.Default) != raw(present.Default) {
		c.say(path, "its default was %s and is %s, so objects that do not say it mean something else", raw(old.Default), raw(present.Default))
	}
}

// enum: values that were allowed still are.
func (c *comparison) enum(path string, old, present *schemaProps) {
	if len(present.Enum) == 0 {
		return
	}
	if len(old.Enum) == 0 {
		c.say(path, "only some values are allowed now, where all were")
		return
	}
	values := func(of []apiextensionsv1.JSON) (out []string) {
		for _, v := range of {
			out = append(out, string(v.Raw))
		}
		return out
	}
	for _, value := range gone(values(old.Enum), values(present.Enum)) {
		c.say(path, "the value %s is not allowed any more", value)
	}
}

// valueBounds are the least and the greatest value that a schema allows. A format bounds
// them, too: what it leaves out, API servers deny or no client can read.
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

// bounds: numbers, lengths and sizes that were allowed still are.
func (c *comparison) bounds(path string, old, present *schemaProps) {
	minimum, maximum := valueBounds(old)
	least(c, path, "value", minimum, present.Minimum)
	most(c, path, "value", maximum, present.Maximum)
	fewest(c, path, "length", old.MinLength, present.MinLength)
	most(c, path, "length", old.MaxLength, present.MaxLength)
	fewest(c, path, "number of items", old.MinItems, present.MinItems)
	most(c, path, "number of items", old.MaxItems, present.MaxItems)
	fewest(c, path, "number of entries", old.MinProperties, present.MinProperties)
	most(c, path, "number of entries", old.MaxProperties, present.MaxProperties)
	if present.ExclusiveMinimum && !old.ExclusiveMinimum && equal(old.Minimum, present.Minimum) {
		c.say(path, "the least value itself is not allowed any more")
	}
	if present.ExclusiveMaximum && !old.ExclusiveMaximum && equal(old.Maximum, present.Maximum) {
		c.say(path, "the greatest value itself is not allowed any more")
	}
	if present.MultipleOf != nil && !equal(old.MultipleOf, present.MultipleOf) {
		c.say(path, "only multiples of %v are allowed now", *present.MultipleOf)
	}
}

func equal[T comparable](a, b *T) bool { return a != nil && b != nil && *a == *b }

func least[T cmp.Ordered](c *comparison, path, what string, old, present *T) {
	if present == nil || old != nil && *present <= *old {
		return
	}
	c.say(path, "the least %s is %v now, %s", what, *present, before(old))
}

// fewest is least for counts, which are never negative.
func fewest(c *comparison, path, what string, old, present *int64) {
	if present != nil && *present > 0 {
		least(c, path, what, old, present)
	}
}

func most[T cmp.Ordered](c *comparison, path, what string, old, present *T) {
	if present == nil || old != nil && *present >= *old {
		return
	}
	c.say(path, "the greatest %s is %v now, %s", what, *present, before(old))
}

func before[T cmp.Ordered](old *T) string {
	if old == nil {
		return "and there was no such bound before"
	}
	return fmt.Sprintf("and was %v", *old)
}

// texts: whether another pattern accepts all that the former one did is undecidable here.
func (c *comparison) texts(path string, old, present *schemaProps) {
	if present.Pattern != "" && old.Pattern != present.Pattern {
		c.say(path, "the pattern %q was not there before; values that it rejects may be stored", present.Pattern)
	}
	if present.Format != "" && old.Format != present.Format {
		c.say(path, "the format %s was not there before", present.Format)
	}
}

// lists: how lists and maps are merged, which changes who owns what.
func (c *comparison) lists(path string, old, present *schemaProps) {
	for _, kind := range []struct {
		what         string
		old, present *string
	}{
		{"list", old.XListType, present.XListType}, {"map", old.XMapType, present.XMapType},
	} {
		if orNone(kind.old) != orNone(kind.present) {
			c.say(path, "the type of %s was %s and is %s, so changes are merged in another way", kind.what, orNone(kind.old), orNone(kind.present))
		}
	}
	if !slices.Equal(old.XListMapKeys, present.XListMapKeys) {
		c.say(path, "the keys of the list were %q and are %q", old.XListMapKeys, present.XListMapKeys)
	}
	if present.UniqueItems && !old.UniqueItems {
		c.say(path, "an item may be there only once now")
	}
}

func orNone(s *string) string {
	if s == nil {
		return "none"
	}
	return *s
}

// rules: CEL. A rule with another text is another rule.
func (c *comparison) rules(path string, old, present *schemaProps) {
	for _, rule := range present.XValidations {
		same := func(o apiextensionsv1.ValidationRule) bool {
			return o.Rule == rule.Rule && isTrue(o.OptionalOldSelf) == isTrue(rule.OptionalOldSelf)
		}
		if !slices.ContainsFunc(old.XValidations, same) {
			c.say(path, "the rule %q was not there before; values that it rejects may be stored", rule.Rule)
		}
	}
}

// junctors: alternatives that were none before, or other ones.
func (c *comparison) junctors(path string, old, present *schemaProps) {
	for _, list := range []struct {
		what         string
		old, present []schemaProps
	}{
		{"allOf", old.AllOf, present.AllOf}, {"anyOf", old.AnyOf, present.AnyOf}, {"oneOf", old.OneOf, present.OneOf},
	} {
		if len(list.present) > 0 && !reflect.DeepEqual(list.old, list.present) {
			c.say(path, "%s is another one", list.what)
		}
	}
	if present.Not != nil && !reflect.DeepEqual(old.Not, present.Not) {
		c.say(path, "not is another one")
	}
}

// properties: fields that were there still are, and nothing more must be said.
func (c *comparison) properties(path string, old, present *schemaProps) {
	for _, name := range slices.Sorted(maps.Keys(old.Properties)) {
		was, field := old.Properties[name], join(path, name)
		is, found := present.Properties[name]
		if !found {
			c.say(field, "the field is gone, with the values stored in it")
			continue
		}
		c.schema(field, &was, &is)
	}
	c.newFields(path, old, present)
	for _, name := range gone(present.Required, old.Required) {
		is := present.Properties[name]
		if is.Default == nil {
			c.say(join(path, name), "the field is required now")
		}
	}
}

// newFields: something may be stored under their names already.
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
			c.say(field, "it has a schema now, where anything was allowed")
		}
	}
}

// inside: items of lists and values of maps.
func (c *comparison) inside(path string, old, present *schemaProps) {
	switch was, is := items(old), items(present); {
	case is == nil:
	case was == nil:
		c.say(path, "its items have a schema now")
	default:
		c.schema(path+"[]", was, is)
	}
	was, is := old.AdditionalProperties, present.AdditionalProperties
	switch {
	case was == nil && is == nil:
	case was != nil && was.Allows && (is == nil || !is.Allows):
		c.say(path, "entries with any name are not allowed any more")
	case was != nil && was.Schema != nil && is != nil && is.Schema != nil:
		c.schema(path+"{}", was.Schema, is.Schema)
	case is != nil && is.Schema != nil && (was != nil || isTrue(old.XPreserveUnknownFields)):
		c.say(path, "the values of its entries have a schema now")
	}
}

func items(of *schemaProps) *schemaProps {
	if of.Items == nil {
		return nil
	}
	return of.Items.Schema
}

func join(path, name string) string { return strings.TrimPrefix(path+"."+name, ".") }
