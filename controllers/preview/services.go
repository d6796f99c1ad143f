package preview

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// servicePolicies are the policies for Services, and what is known about them.
type servicePolicies struct {
	all     *policies.Services       // the valid ones
	invalid []policies.ServicePolicy // an invalid selector is nil
	// namespaces are the labels of each Namespace; missing are the Namespaces of Services that are
	// not among the objects.
	namespaces map[string]map[string]string
	missing    sets.Set[string]
	stored     map[string]*v1alpha1.ServiceProxyRules
	// selected counts the Services that each valid policy selects, and lost those where another
	// policy sets a field.
	selected map[string]int
	lost     map[loss]int
	// ineffective are the Services on which an override has no effect.
	ineffective map[ineffective][]string
}

// loss is a field that a policy sets but another one wins.
type loss struct{ policy, field, winner string }

// ineffective is an override without effect on some Service.
type ineffective struct{ policy, why string }

// services renders every proxied Service. Stored rules of others are removed.
func (r *renderer) services() {
	p := r.servicePolicies()
	withoutIP := 0
	for i := range r.in.Services {
		svc := &r.in.Services[i]
		if svc.Spec.ClusterIP == "" && svc.Spec.Type != corev1.ServiceTypeExternalName {
			withoutIP++
		}
		if render.Eligible(svc) {
			r.service(svc, p)
		}
	}
	if withoutIP > 0 {
		r.note("skipped %s without spec.clusterIP, which the API server assigns: use stored Services, from kubectl get services -A -o yaml", text.Count(withoutIP, "Service"))
	}
	slices.SortFunc(r.result.Services, func(a, b v1alpha1.ServiceProxyRules) int { return cmp.Compare(a.Name, b.Name) })
	r.reportServices(p)
}

// servicePolicies parses the policies, and reports the invalid ones.
func (r *renderer) servicePolicies() *servicePolicies {
	p := &servicePolicies{
		namespaces: map[string]map[string]string{}, missing: sets.Set[string]{}, stored: map[string]*v1alpha1.ServiceProxyRules{},
		selected: map[string]int{}, lost: map[loss]int{}, ineffective: map[ineffective][]string{},
	}
	var usable []policies.ServicePolicy
	for i := range r.in.ServicePolicies {
		policy := &r.in.ServicePolicies[i]
		one, errs := policies.ServicePolicyOf(policy)
		if len(errs) > 0 {
			r.problem("ServiceProxyPolicy %s is not valid, and Services that it selects retain their overrides: %v", policy.Name, errs.ToAggregate())
			p.invalid = append(p.invalid, one)
			continue
		}
		p.selected[policy.Name] = 0
		usable = append(usable, one)
	}
	p.all = policies.NewServices(usable)
	for i := range r.in.Namespaces {
		p.namespaces[r.in.Namespaces[i].Name] = namespaceLabels(r.in.Namespaces[i].Name, r.in.Namespaces[i].Labels)
	}
	for i := range r.in.ServiceRules {
		p.stored[r.in.ServiceRules[i].Name] = &r.in.ServiceRules[i]
	}
	return p
}

// namespaceLabels returns the labels of a Namespace with the one that the API server adds.
func namespaceLabels(name string, written map[string]string) map[string]string {
	return labels.Merge(written, labels.Set{corev1.LabelMetadataName: name})
}

func (r *renderer) service(svc *corev1.Service, p *servicePolicies) {
	of := ptr.Deref(r.slices[types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}], render.ServiceSlices{})
	stored := p.stored[v1alpha1.ServiceProxyRulesName(svc.Namespace, svc.Name)]
	if limit, text := render.Size(svc, of.Slices).Excess(); limit != "" {
		r.problem("Service %s/%s cannot be rendered, and nodes retain its previous rules: %s", svc.Namespace, svc.Name, text)
		if stored != nil {
			r.result.Services = append(r.result.Services, v1alpha1.ServiceProxyRules{ObjectMeta: metav1.ObjectMeta{Name: stored.Name}, Spec: stored.Spec})
		}
		return
	}
	rules, _ := render.Service(svc, of.Slices, p.shape(svc, stored), r.around(stored), r.format)
	rules.Annotations = nil
	r.result.Services = append(r.result.Services, *rules)
}

// around is what is known of the cluster. It does not include service ranges: of these the preview
// uses what the controller has found, which has more permissions.
func (r *renderer) around(stored *v1alpha1.ServiceProxyRules) render.Cluster {
	skipped := cmp.Or(stored, &v1alpha1.ServiceProxyRules{}).Spec.SkippedAddresses
	return render.Cluster{APIServers: r.apiServers, OfNode: r.nodeIPs.Has, Skipped: skipped}
}

// shape returns the shape of a Service: the current one if one of its policies is invalid.
func (p *servicePolicies) shape(svc *corev1.Service, stored *v1alpha1.ServiceProxyRules) render.Shape {
	if len(p.selected)+len(p.invalid) == 0 {
		return render.Shape{}
	}
	of, found := p.namespaces[svc.Namespace]
	if !found {
		of = namespaceLabels(svc.Namespace, nil)
		p.namespaces[svc.Namespace] = of
		p.missing.Insert(svc.Namespace)
	}
	resolution := p.all.Resolve(of, svc.Labels)
	for _, policy := range resolution.Matching {
		p.selected[policy]++
	}
	if shape, retains := p.retained(svc, stored, of); retains {
		return shape
	}
	for policy, fields := range resolution.Overridden {
		for field, winner := range fields {
			p.lost[loss{policy, field, winner}]++
		}
	}
	for _, without := range render.IneffectiveOverrides(svc, &resolution.Overrides) {
		key := ineffective{resolution.Owners[without.Field], without.Why}
		p.ineffective[key] = append(p.ineffective[key], svc.Namespace+"/"+svc.Name)
	}
	return render.Shape{Overrides: &resolution.Overrides, Policies: resolution.Policies}
}

// retained returns the overrides of a Service, if it retains them because of an invalid policy.
func (p *servicePolicies) retained(svc *corev1.Service, stored *v1alpha1.ServiceProxyRules, namespace map[string]string) (render.Shape, bool) {
	if stored == nil || !slices.ContainsFunc(p.invalid, func(policy policies.ServicePolicy) bool {
		return policy.Retains(namespace, svc.Labels, stored.Spec.Policies)
	}) {
		return render.Shape{}, false
	}
	text := stored.Annotations[v1alpha1.AnnotationOverrides]
	grant := policies.ReadOverrides(text)
	if grant == nil || text == "" && len(stored.Spec.Policies) > 0 {
		return render.Shape{}, false // what it has is not known
	}
	return render.Shape{Overrides: &grant.Overrides, Policies: stored.Spec.Policies}, true
}

// reportServices reports which fields of policies, and which policies, have no effect.
func (r *renderer) reportServices(p *servicePolicies) {
	if len(p.missing) > 0 && len(p.selected) > 0 {
		r.note("%s of Services not among the objects, assumed to have no labels but %s (%s)",
			text.Count(len(p.missing), "namespace"), corev1.LabelMetadataName, text.Some(sets.List(p.missing), maxNames))
	}
	for _, l := range slices.SortedFunc(maps.Keys(p.lost), loss.compare) {
		r.note("ServiceProxyPolicy %s: spec.overrides.%s is set by ServiceProxyPolicy %s on %s", l.policy, l.field, l.winner, text.Count(p.lost[l], "Service"))
	}
	for _, w := range slices.SortedFunc(maps.Keys(p.ineffective), func(a, b ineffective) int {
		return cmp.Or(cmp.Compare(a.policy, b.policy), cmp.Compare(a.why, b.why))
	}) {
		services := slices.Sorted(slices.Values(p.ineffective[w]))
		r.note("ServiceProxyPolicy %s has no effect on %s (%s): spec.overrides.%s", w.policy, text.Count(len(services), "Service"), text.Some(services, maxNames), w.why)
	}
	r.reportUnused("ServiceProxyPolicy %s selects no Service", p.selected)
}

func (l loss) compare(o loss) int {
	return cmp.Or(cmp.Compare(l.policy, o.policy), cmp.Compare(l.field, o.field), cmp.Compare(l.winner, o.winner))
}
