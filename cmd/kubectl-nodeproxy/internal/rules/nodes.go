package rules

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"

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
	ofB := facts(b)
	for i, fact := range facts(a) {
		d.field(fact[0], fact[1], ofB[i][1])
	}
	only := [2]int{}
	for _, f := range families() {
		d.services(f, first[f].Services, second[f].Services, local, &only)
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
	return nil
}

// flat returns complete settings by the paths of their fields.
func flat(settings *v1alpha1.ProxySettings) (map[string]string, error) {
	tree, err := runtime.DefaultUnstructuredConverter.ToUnstructured(v1alpha1.CompleteSettings(settings))
	if err != nil {
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
		into[path] = output.Join(v)
	default:
		into[path] = fmt.Sprint(v)
	}
}

// facts describe a node and what runs there, without what must differ between nodes.
func facts(n *v1alpha1.NodeProxyRules) [][2]string {
	agent := cmp.Or(n.Status.Agent, &v1alpha1.AgentReport{})
	list := [][2]string{
		{"policies", strings.Join(n.Spec.Policies, ", ")},
		{"zone", n.Spec.Node.Zone},
		{"draining", fmt.Sprint(n.Spec.Node.Draining)},
		{"families of its addresses", familiesOf(n.Spec.Node.Addresses)},
		{"families of its pods", familiesOf(n.Spec.Node.PodCIDRs)},
		{"format of its rules", fmt.Sprint(n.Spec.FormatVersion)},
		{"running mode", string(n.Status.Mode)},
		{"programmed families", strings.Join(n.Status.Families, ", ")},
		{v1alpha1.ConditionAccepted, condition(n, v1alpha1.ConditionAccepted)},
		{v1alpha1.ConditionProgrammed, condition(n, v1alpha1.ConditionProgrammed)},
	}
	for _, name := range []string{v1alpha1.ConditionModeFallback, v1alpha1.ConditionConflictingProxy, v1alpha1.ConditionConntrackPressure, v1alpha1.ConditionDrifted} {
		list = append(list, [2]string{name, fmt.Sprint(meta.IsStatusConditionTrue(n.Status.Conditions, name))})
	}
	return append(list,
		[2]string{"agent", agent.Version},
		[2]string{"kernel", agent.Kernel},
		[2]string{"iptables", agent.IPTables},
		[2]string{"formats that the agent supports", fmt.Sprint(agent.FormatVersions)},
	)
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
	found := sets.New[string]()
	for _, text := range texts {
		host, _, _ := strings.Cut(text, "/")
		if a, err := netip.ParseAddr(host); err == nil {
			for _, f := range families() {
				if f.Of(a) {
					found.Insert(string(f))
				}
			}
		}
	}
	return strings.Join(sets.List(found), ", ")
}

// services compares the desired rules of one family. only counts ports that have local endpoints
// on only one of the nodes.
func (d *Difference) services(f dataplane.Family, first, second map[dataplane.ServiceName]*dataplane.Service, local bool, only *[2]int) {
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
				add(label+", policy Cluster", some(p.Cluster), some(q.Cluster))
			}
			switch {
			case local:
				add(label+", policy Local", some(p.Local), some(q.Local))
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
