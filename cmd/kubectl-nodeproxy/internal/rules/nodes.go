package rules

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// Between compares two nodes. It only counts local endpoints, which must differ, unless local
// is true.
func Between(a, b *v1alpha1.NodeProxyRules, services []v1alpha1.ServiceProxyRules, local bool) (*Difference, error) {
	first, err := whole(a, services)
	if err != nil {
		return nil, err
	}
	second, err := whole(b, services)
	if err != nil {
		return nil, err
	}
	d := &Difference{TypeMeta: output.Type("RulesDiff"), Node: a.Name, Other: b.Name, columns: [2]string{a.Name, b.Name}}
	if err := d.settings(a, b); err != nil {
		return nil, err
	}
	d.facts(a, b)
	only := [2]int{}
	for _, f := range families() {
		d.sets(f, first[f].Services, second[f].Services, local, &only)
	}
	slices.SortFunc(d.Services, func(x, y ServiceDifference) int {
		return strings.Compare(x.Service+" "+string(x.Family), y.Service+" "+string(y.Family))
	})
	if only[0]+only[1] > 0 && !local {
		d.Notes = append(d.Notes, fmt.Sprintf("ports with traffic policy Local that have endpoints on only one of the nodes: %d on %s, %d on %s (--local lists them)",
			only[0], a.Name, only[1], b.Name))
	}
	return d.compared(), nil
}

// settings compares the settings field by field.
func (d *Difference) settings(a, b *v1alpha1.NodeProxyRules) error {
	first, err := flat(&a.Spec.Settings)
	if err != nil {
		return err
	}
	second, err := flat(&b.Spec.Settings)
	if err != nil {
		return err
	}
	names := maps.Clone(first)
	maps.Copy(names, second)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		d.field("settings."+name, first[name], second[name])
	}
	d.field("policies", strings.Join(a.Spec.Policies, ", "), strings.Join(b.Spec.Policies, ", "))
	return nil
}

// flat returns complete settings by the paths of their fields.
func flat(settings *v1alpha1.ProxySettings) (map[string]string, error) {
	text, err := json.Marshal(v1alpha1.CompleteSettings(settings))
	if err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	tree := map[string]any{}
	if err := json.Unmarshal(text, &tree); err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	fields := map[string]string{}
	flatten("", tree, fields)
	return fields, nil
}

func flatten(path string, value any, into map[string]string) {
	switch v := value.(type) {
	case map[string]any:
		for name, below := range v {
			flatten(strings.TrimPrefix(path+"."+name, "."), below, into)
		}
	case []any:
		texts := make([]string, len(v))
		for i := range v {
			texts[i] = fmt.Sprint(v[i])
		}
		into[path] = strings.Join(texts, ", ")
	default:
		into[path] = fmt.Sprint(v)
	}
}

// facts compares the nodes and what runs there, without what must differ.
func (d *Difference) facts(a, b *v1alpha1.NodeProxyRules) {
	d.field("zone", a.Spec.Node.Zone, b.Spec.Node.Zone)
	d.field("draining", fmt.Sprint(a.Spec.Node.Draining), fmt.Sprint(b.Spec.Node.Draining))
	d.field("families of its addresses", familiesOf(a.Spec.Node.Addresses), familiesOf(b.Spec.Node.Addresses))
	d.field("families of its pods", familiesOf(a.Spec.Node.PodCIDRs), familiesOf(b.Spec.Node.PodCIDRs))
	d.field("format of its rules", fmt.Sprint(a.Spec.FormatVersion), fmt.Sprint(b.Spec.FormatVersion))
	d.field("running mode", string(a.Status.Mode), string(b.Status.Mode))
	d.field("programmed families", strings.Join(a.Status.Families, ", "), strings.Join(b.Status.Families, ", "))
	for _, name := range []string{v1alpha1.ConditionAccepted, v1alpha1.ConditionProgrammed} {
		d.field(name, condition(a, name), condition(b, name))
	}
	for _, name := range []string{v1alpha1.ConditionModeFallback, v1alpha1.ConditionConflictingProxy, v1alpha1.ConditionConntrackPressure, v1alpha1.ConditionDrifted} {
		d.field(name, fmt.Sprint(meta.IsStatusConditionTrue(a.Status.Conditions, name)), fmt.Sprint(meta.IsStatusConditionTrue(b.Status.Conditions, name)))
	}
	first, second := a.Status.Agent, b.Status.Agent
	if first == nil {
		first = &v1alpha1.AgentReport{}
	}
	if second == nil {
		second = &v1alpha1.AgentReport{}
	}
	d.field("agent", first.Version, second.Version)
	d.field("kernel", first.Kernel, second.Kernel)
	d.field("iptables", first.IPTables, second.IPTables)
	d.field("formats that the agent supports", fmt.Sprint(first.FormatVersions), fmt.Sprint(second.FormatVersions))
}

func condition(n *v1alpha1.NodeProxyRules, name string) string {
	c := meta.FindStatusCondition(n.Status.Conditions, name)
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%s, %s", c.Status, c.Reason)
}

// familiesOf returns the families of addresses or ranges.
func familiesOf(texts []string) string {
	found := map[string]bool{}
	for _, text := range texts {
		host, _, _ := strings.Cut(text, "/")
		if a, err := netip.ParseAddr(host); err == nil {
			for _, f := range families() {
				found[string(f)] = found[string(f)] || f.Of(a)
			}
		}
	}
	maps.DeleteFunc(found, func(_ string, is bool) bool { return !is })
	return strings.Join(slices.Sorted(maps.Keys(found)), ", ")
}

// sets compares the desired rules of one family. only counts ports that have local endpoints
// on only one of the nodes.
func (d *Difference) sets(f dataplane.Family, first, second map[dataplane.ServiceName]*dataplane.Service, local bool, only *[2]int) {
	for name, a := range first {
		b := second[name]
		if b == nil {
			continue // both are combined from the same objects
		}
		diff := ServiceDifference{Service: name.String(), Family: f}
		add := func(what, x, y string) {
			if x != y {
				diff.Fields = append(diff.Fields, Field{Name: what, Node: x, Other: y})
			}
		}
		for i := range a.Ports {
			if i >= len(b.Ports) {
				break
			}
			p, q := &a.Ports[i], &b.Ports[i]
			label := fmt.Sprintf("%d/%s", p.Port, p.Protocol)
			if !slices.Equal(p.Cluster, q.Cluster) {
				add(label+", policy Cluster", list(p.Cluster), list(q.Cluster))
			}
			switch {
			case local:
				add(label+", policy Local", list(p.Local), list(q.Local))
			case len(p.Local) > 0 && len(q.Local) == 0:
				only[0]++
			case len(q.Local) > 0 && len(p.Local) == 0:
				only[1]++
			}
		}
		if len(diff.Fields) > 0 {
			d.Services = append(d.Services, diff)
		}
	}
}

func list(endpoints []netip.AddrPort) string {
	if len(endpoints) == 0 {
		return "none"
	}
	texts := make([]string, len(endpoints))
	for i, e := range endpoints {
		texts[i] = e.String()
	}
	return output.Some(texts, maxEndpoints)
}
