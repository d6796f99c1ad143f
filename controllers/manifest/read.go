package manifest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "sigs.k8s.io/json"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/preview"
)

// Kinds that users write, which are validated as the API server does.
const (
	kindNodeProxy     = "NodeProxy"
	kindNodePolicy    = "NodeProxyPolicy"
	kindServicePolicy = "ServiceProxyPolicy"
)

// Read is the content of files.
type Read struct {
	Objects preview.Objects
	// ignored counts, by kind and apiVersion, the objects that nothing is rendered from.
	ignored map[string]int
}

// Parse parses files, and validates what users write with their CRDs, which are in the directory
// bases of crds. The error joins all problems, each with its place.
func Parse(ctx context.Context, crds fs.FS, files []File) (*Read, error) {
	r := &reader{schemas: &schemas{crds: crds, kinds: map[string]*schema{}}, read: &Read{ignored: map[string]int{}}, seen: map[string]place{}}
	r.takers = takers(&r.read.Objects)
	for _, f := range files {
		r.file(ctx, f)
	}
	return r.read, errors.Join(r.errs...)
}

type reader struct {
	schemas *schemas
	read    *Read
	takers  map[metav1.TypeMeta]func(raw []byte) error // each adds an object of a kind
	seen    map[string]place                           // by kind, namespace and name
	errs    []error
}

type header struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"metadata"`
	Items *[]json.RawMessage `json:"items"`
}

func (r *reader) fail(at place, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("%s: %w", at, fmt.Errorf(format, args...)))
}

func (r *reader) file(ctx context.Context, f File) {
	all, err := documents(f)
	for i, d := range all {
		at := place{file: f.Name, document: i + 1, line: d.line}
		raw, err := d.toJSON()
		if err != nil {
			r.fail(at, "not YAML: %w", err)
			continue
		}
		if string(raw) != "null" { // nothing but comments
			r.document(ctx, at, raw, metav1.TypeMeta{})
		}
	}
	if err != nil {
		r.errs = append(r.errs, fmt.Errorf("%s, %w", f.Name, err))
	}
}

// document parses an object, or a list of objects. Items of a list of one kind need not name it: then
// it is of.
func (r *reader) document(ctx context.Context, at place, raw []byte, of metav1.TypeMeta) {
	h := header{}
	if err := json.Unmarshal(raw, &h); err != nil {
		r.fail(at, "not an object of Kubernetes: %w", err)
		return
	}
	if h.Kind == "" && h.APIVersion == "" && of.Kind != "" {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(raw, &fields); err == nil && fields != nil {
			h.TypeMeta = of
			fields["apiVersion"], fields["kind"] = quoted(of.APIVersion), quoted(of.Kind)
			raw, _ = json.Marshal(fields) // of what was JSON before
		}
	}
	kind, isList := strings.CutSuffix(h.Kind, "List")
	switch {
	case !isList || at.item > 0:
		r.object(ctx, at, raw, h)
	case h.Items == nil:
		r.fail(at, "%s has no items", h.Kind)
	default:
		for i, item := range *h.Items {
			at.item = i + 1
			r.document(ctx, at, item, metav1.TypeMeta{APIVersion: h.APIVersion, Kind: kind})
		}
	}
}

func quoted(s string) json.RawMessage {
	out, _ := json.Marshal(s) // a string always can be
	return out
}

func (r *reader) object(ctx context.Context, at place, raw []byte, h header) {
	if h.Kind == "" || h.APIVersion == "" {
		r.fail(at, "apiVersion and kind are missing")
		return
	}
	take, known := r.takers[h.TypeMeta]
	if !known {
		if group, _, _ := strings.Cut(h.APIVersion, "/"); group == v1alpha1.GroupVersion.Group {
			r.fail(at, "there is no kind %s in %s: known are, in %s, %s, %s, %s and the rendered kinds",
				h.Kind, h.APIVersion, v1alpha1.GroupVersion, kindNodeProxy, kindNodePolicy, kindServicePolicy)
			return
		}
		r.read.ignored[h.Kind+" ("+h.APIVersion+")"]++
		return
	}
	if h.Metadata.Name == "" {
		r.fail(at, "%s: metadata.name is missing", h.Kind)
		return
	}
	name := strings.TrimPrefix(h.Metadata.Namespace+"/"+h.Metadata.Name, "/")
	if h.Kind != "Service" && h.Kind != "EndpointSlice" {
		name = h.Metadata.Name // a namespace does not count
	}
	key := h.Kind + " " + name
	if first, found := r.seen[key]; found {
		r.fail(at, "%s is in %s already: it is ambiguous which one applies", key, first)
		return
	}
	r.seen[key] = at
	if slices.Contains([]string{kindNodeProxy, kindNodePolicy, kindServicePolicy}, h.Kind) {
		wrong, err := r.schemas.validate(ctx, h.Kind, raw)
		if err != nil {
			r.fail(at, "%s: %w", key, err)
			return
		}
		for _, problem := range wrong {
			r.fail(at, "%s: %s", key, problem)
		}
		if len(wrong) > 0 {
			return
		}
	}
	if err := take(raw); err != nil {
		r.fail(at, "%s: %w", key, err)
	}
}

// takers add objects to others, by kind: those that something is rendered from, or that are
// rendered.
func takers(o *preview.Objects) map[metav1.TypeMeta]func(raw []byte) error {
	own, core, slice := v1alpha1.GroupVersion.String(), corev1.SchemeGroupVersion.String(), discoveryv1.SchemeGroupVersion.String()
	return map[metav1.TypeMeta]func([]byte) error{
		{APIVersion: own, Kind: kindNodeProxy}:       one(&o.NodeProxy),
		{APIVersion: own, Kind: kindNodePolicy}:      more(&o.NodePolicies),
		{APIVersion: own, Kind: kindServicePolicy}:   more(&o.ServicePolicies),
		{APIVersion: own, Kind: "NodeProxyRules"}:    more(&o.NodeRules),
		{APIVersion: own, Kind: "ServiceProxyRules"}: more(&o.ServiceRules),
		{APIVersion: core, Kind: "Node"}:             more(&o.Nodes),
		{APIVersion: core, Kind: "Namespace"}:        more(&o.Namespaces),
		{APIVersion: core, Kind: "Service"}:          more(&o.Services),
		{APIVersion: slice, Kind: "EndpointSlice"}:   more(&o.Slices),
	}
}

// more decodes into one more of a list.
func more[T any](list *[]T) func([]byte) error {
	return func(raw []byte) error {
		var object *T
		err := one(&object)(raw)
		if err == nil {
			*list = append(*list, *object)
		}
		return err
	}
}

func one[T any](into **T) func([]byte) error {
	return func(raw []byte) error {
		object := new(T)
		if err := utiljson.UnmarshalCaseSensitivePreserveInts(raw, object); err != nil {
			return err
		}
		*into = object
		return nil
	}
}

// Ignored names the objects that nothing is rendered from; empty if there are none.
func (r *Read) Ignored() string {
	if len(r.ignored) == 0 {
		return ""
	}
	parts := make([]string, 0, len(r.ignored))
	total := 0
	for _, kind := range slices.Sorted(maps.Keys(r.ignored)) {
		parts = append(parts, fmt.Sprintf("%d %s", r.ignored[kind], kind))
		total += r.ignored[kind]
	}
	return fmt.Sprintf("ignoring %s that nothing is rendered from: %s", text.Count(total, "object"), strings.Join(parts, ", "))
}
