package preview

import (
	"fmt"
	"io"

	"sigs.k8s.io/yaml"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// object is the printed form of a rendered object: what the controllers decide about it.
type object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels,omitempty"`
	} `json:"metadata"`
	Spec any `json:"spec"`
}

func newObject(kind, name string, spec any) *object {
	o := &object{APIVersion: v1alpha1.GroupVersion.String(), Kind: kind, Spec: spec}
	o.Metadata.Name = name
	return o
}

func nodeObject(r *v1alpha1.NodeProxyRules) *object { return newObject(kindNodeRules, r.Name, &r.Spec) }

// serviceObject leaves out labels of others, which stay as they are.
func serviceObject(r *v1alpha1.ServiceProxyRules) *object {
	o := newObject(kindServiceRules, r.Name, &r.Spec)
	o.Metadata.Labels = map[string]string{}
	for _, name := range []string{v1alpha1.LabelServiceNamespace, v1alpha1.LabelServiceName} {
		if value, found := r.Labels[name]; found {
			o.Metadata.Labels[name] = value
		}
	}
	return o
}

func (o *object) text() ([]byte, error) {
	text, err := yaml.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("encode %s %s: %w", o.Kind, o.Metadata.Name, err)
	}
	return text, nil
}

// Write writes the rendered objects in YAML, nodes first, each sorted by name. The output can be
// read again as stored objects.
func (r *Result) Write(w io.Writer) error {
	write := func(o *object) error {
		text, err := o.text()
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "---\n%s", text)
		return err
	}
	for i := range r.Nodes {
		if err := write(nodeObject(&r.Nodes[i])); err != nil {
			return err
		}
	}
	for i := range r.Services {
		if err := write(serviceObject(&r.Services[i])); err != nil {
			return err
		}
	}
	return nil
}
