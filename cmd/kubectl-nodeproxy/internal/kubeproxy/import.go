package kubeproxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// InvalidError is a configuration of kube-proxy that cannot be read.
type InvalidError struct{ message string }

// Error names object and field.
func (e *InvalidError) Error() string { return e.message }

func invalid(format string, args ...any) error {
	return &InvalidError{fmt.Sprintf(format, args...)}
}

var errNone = errors.New("no kube-proxy found: kube-system has neither a DaemonSet nor static pods of it, and no Node has the annotation " + k3sArguments)

// mostPolicies limits the output, for clusters where every node has settings of its own.
const mostPolicies = 50

// Result is what an import returns.
type Result struct {
	documents []document
	// Lost is the number of comments about what was not carried over.
	Lost int
}

// document is an object with comments.
type document struct {
	comment string
	notes   []note

	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec any `json:"spec"`
}

func newDocument(kind, name, comment string, spec any) document {
	d := document{comment: comment, TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: kind}, Spec: spec}
	d.Metadata.Name = name
	return d
}

// Import returns a NodeProxy with the settings of the cluster's kube-proxy, and policies for
// nodes whose kube-proxy differs.
func Import(ctx context.Context, cluster Cluster, enforcement v1alpha1.Enforcement) (*Result, error) {
	finder := &finder{Cluster: cluster, maps: map[string]*corev1.ConfigMap{}}
	pools, err := finder.pools(ctx)
	if err != nil {
		return nil, err
	}
	base := pools[0]
	settings, _ := overrides(v1alpha1.CompleteSettings(nil), base.settings)
	settings.Mode, settings.DetectLocal, settings.Enforcement = base.settings.Mode, base.settings.DetectLocal, &enforcement
	first := newDocument("NodeProxy", v1alpha1.NodeProxyName, describe("Settings of kube-proxy, from ", base), &v1alpha1.NodeProxySpec{
		Settings: (*v1alpha1.WrittenSettings)(settings),
		Agent:    &v1alpha1.AgentSettings{Management: new(v1alpha1.AgentManaged)},
	})
	first.notes = base.config.notes
	policies, others := policiesOf(pools)
	if len(policies) > mostPolicies {
		return nil, invalid("the kube-proxies of this cluster differ so much that %d policies are necessary, more than %d: see settings of %s and %s",
			len(policies), mostPolicies, pools[0].from, pools[1].from)
	}
	first.notes = append(first.notes, others...)
	result := &Result{documents: append([]document{first}, policies...)}
	for i := range result.documents {
		result.documents[i].notes = distinct(result.documents[i].notes)
		for _, n := range result.documents[i].notes {
			if n.lost {
				result.Lost++
			}
		}
	}
	return result, nil
}

// distinct returns notes without repetitions.
func distinct(notes []note) []note {
	seen := map[note]bool{}
	var out []note
	for _, n := range notes {
		if !seen[n] {
			out = append(out, n)
		}
		seen[n] = true
	}
	return out
}

func describe(what string, p *pool) string {
	if p.config.file != "" {
		return what + p.from + " (" + p.config.file + ")"
	}
	return what + p.from
}

// policiesOf returns policies for the pools that differ from the first one, and notes on
// others.
func policiesOf(pools []*pool) (policies []document, notes []note) {
	names := map[string]int{}
	for _, p := range pools[1:] {
		settings, cleared := overrides(pools[0].settings, p.settings)
		own := p.config.notes
		for _, path := range cleared {
			own = append(own, note{"settings", fmt.Sprintf("not carried over: %s: a policy cannot empty %s of NodeProxy", p.from, path), true})
		}
		if reflect.DeepEqual(settings, &v1alpha1.ProxySettings{}) {
			notes = append(notes, own...)
			continue
		}
		if p.unselectable != nil {
			content, err := json.Marshal(settings)
			if err != nil {
				panic(err) // the types of the API can be encoded
			}
			notes = append(append(notes, own...), note{"settings", fmt.Sprintf("not carried over: %s: no NodeProxyPolicy can select its nodes, because %v; it needs the settings %s",
				p.from, p.unselectable, content), true})
			continue
		}
		for _, selector := range p.selectors {
			names[p.name]++
			name := p.name
			if n := names[p.name]; n > 1 {
				name = fmt.Sprintf("%s-%d", p.name, n)
			}
			d := newDocument("NodeProxyPolicy", name, describe("Differing settings, from ", p), &v1alpha1.NodeProxyPolicySpec{
				NodeSelector: selector, Settings: v1alpha1.WrittenSettings(*settings),
			})
			d.notes = own
			policies = append(policies, d)
		}
	}
	return policies, notes
}

// overrides returns the fields of complete settings that differ from others. cleared are lists
// that are empty only in these settings, which no override expresses.
func overrides(from, to *v1alpha1.ProxySettings) (out *v1alpha1.ProxySettings, cleared []string) {
	out = &v1alpha1.ProxySettings{}
	var compare func(parent string, out, from, to reflect.Value)
	compare = func(parent string, out, from, to reflect.Value) {
		for i := range to.NumField() {
			a, b := from.Field(i), to.Field(i)
			name, _, _ := strings.Cut(to.Type().Field(i).Tag.Get("json"), ",")
			path := strings.TrimPrefix(parent+"."+name, ".")
			_, whole := reflect.TypeAssert[interface{ SetAsWhole() }](b)
			switch {
			case reflect.DeepEqual(a.Interface(), b.Interface()) || b.Kind() == reflect.Slice && a.Len()+b.Len() == 0:
			case b.Kind() == reflect.Slice && b.Len() == 0:
				cleared = append(cleared, path)
			case b.Kind() == reflect.Pointer && b.Elem().Kind() == reflect.Struct && !whole:
				inner := reflect.New(b.Type().Elem())
				compare(path, inner.Elem(), a.Elem(), b.Elem())
				if !inner.Elem().IsZero() {
					out.Field(i).Set(inner)
				}
			default:
				out.Field(i).Set(b)
			}
		}
	}
	compare("", reflect.ValueOf(out).Elem(), reflect.ValueOf(from).Elem(), reflect.ValueOf(to).Elem())
	return out, cleared
}
