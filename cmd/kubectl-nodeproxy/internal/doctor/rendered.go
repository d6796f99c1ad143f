package doctor

import (
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// rendering compares the stored ServiceProxyRules with those that follow from the Services
// and their EndpointSlices.
func (e *examination) rendering() {
	var unmanaged []string
	for _, svc := range e.asked() {
		name := named(svc)
		stored := e.rules[name]
		switch {
		case e.unknownFormat(findings.CheckRendering, stored):
		case !render.Eligible(svc):
			if _, other := svc.Labels[render.LabelServiceProxyName]; other {
				unmanaged = append(unmanaged, name.String())
			}
			if stored != nil && !stored.Spec.Released {
				e.notRendered(name, "StillRendered", stored.ResourceVersion, "its rules still exist although it is no longer proxied: "+cluster.Ineligible(svc))
			}
		case stored == nil || stored.Spec.Released:
			if e.Off() || e.NodeProxy != nil && slices.ContainsFunc(e.NodeProxy.Status.Unrendered, func(r v1alpha1.UnrenderedService) bool {
				return r.Namespace == name.Namespace && r.Name == name.Name
			}) {
				continue // unrenderedServices reports it
			}
			e.notRendered(name, "NotRendered", "", "the Service is not rendered: only nodes that programmed it earlier serve it")
		default:
			before, now, _ := e.desired(svc)
			if equality.Semantic.DeepEqual(before.Spec, stored.Spec) || equality.Semantic.DeepEqual(now.Spec, stored.Spec) {
				continue
			}
			e.notRendered(name, "RenderedOutdated", stored.ResourceVersion,
				"nodes serve an outdated state of the Service or its EndpointSlices (changed: "+strings.Join(differing(&stored.Spec, &now.Spec), ", ")+")")
		}
	}
	if len(unmanaged) > 0 && e.Only == nil {
		e.Notef("%s assigned to another proxy by the label %s: %s", text.Count(len(unmanaged), "Service"), render.LabelServiceProxyName, findings.Some(unmanaged))
	}
	for name, rules := range e.rules {
		if e.Only == nil && e.services[name] == nil && !rules.Spec.Released {
			e.notRendered(name, "StillRendered", rules.ResourceVersion, "the Service no longer exists, but its rules do")
		}
	}
	e.localEndpoints()
}

// used are the rules of the examined Services that agents use. The check is skipped for rules
// that only a newer release supports.
func (e *examination) used(check findings.Check) iter.Seq2[types.NamespacedName, *v1alpha1.ServiceProxyRules] {
	return func(yield func(types.NamespacedName, *v1alpha1.ServiceProxyRules) bool) {
		for i := range e.ServiceRules {
			rules := &e.ServiceRules[i]
			name, ok := serviceOf(rules)
			if ok && e.concerns(name) && !rules.Spec.Released && !e.unknownFormat(check, rules) && !yield(name, rules) {
				return
			}
		}
	}
}

// unknownFormat skips a check for rules that only a newer release supports.
func (e *examination) unknownFormat(check findings.Check, stored *v1alpha1.ServiceProxyRules) bool {
	if stored == nil || stored.Spec.FormatVersion <= v1alpha1.FormatVersion {
		return false
	}
	e.Skip(check, e.NewerService(stored).Error())
	return true
}

func (e *examination) notRendered(name types.NamespacedName, what, token, text string) {
	e.Add(findings.Finding{
		Severity: findings.Problem, Reason: what, Check: findings.CheckRendering, Service: name.String(), Key: "rendering " + name.String(),
		Causes: []string{findings.KeyRemoving, findings.KeyBehind}, Message: text, Transient: true, Token: token,
		Remedy: e.Docs.See(fmt.Sprintf("check its events: kubectl get events -n %s --field-selector involvedObject.name=%s", name.Namespace, name.Name), "troubleshooting.md#nodeproxyservicesnotrendered"),
	})
}

// localEndpoints compares the local endpoints in the rules of nodes with EndpointSlices.
func (e *examination) localEndpoints() {
	byNode := map[string]sets.Set[types.NamespacedName]{}
	for name := range e.slices {
		for _, slice := range e.rendered(name) {
			for _, node := range render.NodesNamed(slice) {
				if byNode[node] == nil {
					byNode[node] = sets.New[types.NamespacedName]()
				}
				byNode[node].Insert(name)
			}
		}
	}
	leftOut := map[types.NamespacedName]*findings.Finding{}
	for _, node := range e.Nodes {
		var of []render.ServiceSlices
		for name := range byNode[node.Name] { // of all Services, because they compete for space
			svc := e.services[name]
			of = append(of, render.ServiceSlices{Service: name, Slices: e.rendered(name), Local: svc != nil && render.HasPolicyLocal(svc)})
		}
		local := render.LocalEndpoints(node.Name, of, node.Spec.LocalEndpoints)
		e.leftOut(node.Name, local.LeftOut, leftOut)
		if equality.Semantic.DeepEqual(e.concerning(local.Services), e.concerning(node.Spec.LocalEndpoints)) {
			continue
		}
		e.Add(findings.Finding{
			Severity: findings.Problem, Reason: "LocalEndpointsOutdated", Check: findings.CheckRendering, Nodes: []string{node.Name},
			Key: findings.NodeKey(node.Name, "local endpoints"), Causes: []string{findings.KeyRemoving, findings.KeyBehind}, Transient: true, Token: node.ResourceVersion,
			Message: "the node's rules have other local endpoints than the EndpointSlices, which affects policy Local",
			Remedy:  e.CheckController(),
		})
	}
	for _, f := range leftOut {
		e.Add(*f)
	}
}

// concerning are the local endpoints of the examined Services.
func (e *examination) concerning(all []v1alpha1.ServiceLocalEndpoints) []v1alpha1.ServiceLocalEndpoints {
	return slices.DeleteFunc(slices.Clone(all), func(s v1alpha1.ServiceLocalEndpoints) bool {
		return !e.concerns(types.NamespacedName{Namespace: s.Namespace, Name: s.Name})
	})
}

// leftOut collects the Services whose local endpoints are left out of the rules of a node.
func (e *examination) leftOut(node string, list []render.LeftOut, found map[types.NamespacedName]*findings.Finding) {
	for _, out := range list {
		if !e.concerns(out.Service) {
			continue
		}
		f := found[out.Service]
		if f == nil {
			f = &findings.Finding{
				Severity: findings.Problem, Reason: "LocalEndpointsLeftOut", Check: findings.CheckRendering, Service: out.Service.String(),
				Message: "the rules of the node lack the local endpoints of the Service, so policy Local finds none there: " + out.Why(),
				Remedy:  e.Docs.See("reduce the ports of the Services in its namespace, or spread their pods over more nodes", "security.md#who-can-do-what-harm"),
			}
			found[out.Service] = f
		}
		f.Nodes = append(f.Nodes, node)
	}
}

// differing returns the JSON names of the fields that differ.
func differing(a, b *v1alpha1.ServiceProxyRulesSpec) []string {
	var out []string
	va, vb := reflect.ValueOf(*a), reflect.ValueOf(*b)
	for i := range va.NumField() {
		if !equality.Semantic.DeepEqual(va.Field(i).Interface(), vb.Field(i).Interface()) {
			name, _, _ := strings.Cut(va.Type().Field(i).Tag.Get("json"), ",")
			if name != "endpointCount" && name != "portSummary" && name != "clusterIP" { // these follow from other fields
				out = append(out, name)
			}
		}
	}
	return out
}

// about describes the one Service to examine.
func (e *examination) about() {
	svc := e.services[*e.Only]
	if svc == nil {
		return
	}
	if render.Eligible(svc) {
		e.whereServed()
		return
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName || svc.Spec.ClusterIP == corev1.ClusterIPNone {
		e.Notef("nodeproxy does not proxy this Service: %s", cluster.Ineligible(svc))
		return
	}
	e.Add(findings.Finding{
		Severity: findings.Problem, Reason: "NotEligible", Check: findings.CheckRendering, Service: named(svc).String(),
		Message: "nodeproxy does not proxy the Service: " + cluster.Ineligible(svc), Remedy: remedyIneligible(svc),
	})
}

// whereServed counts the endpoints of the Service, by node.
func (e *examination) whereServed() {
	all, take := 0, 0
	nodes := map[string]int{}
	for _, slice := range e.rendered(*e.Only) {
		for i := range slice.Endpoints {
			all++
			if endpoint := &slice.Endpoints[i]; render.Takes(endpoint) {
				take++
				nodes[ptr.Deref(endpoint.NodeName, "no node")]++
			}
		}
	}
	if take == 0 {
		return // see the check of endpoints
	}
	var texts []string
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		texts = append(texts, fmt.Sprintf("%d on %s", nodes[node], node))
	}
	e.Notef("%d of %s usable (%s)", take, text.Count(all, "endpoint"), findings.Some(texts))
}

func remedyIneligible(svc *corev1.Service) string {
	if _, other := svc.Labels[render.LabelServiceProxyName]; other {
		return fmt.Sprintf("check whether that proxy runs, or remove the label: kubectl label service -n %s %s %s-", svc.Namespace, svc.Name, render.LabelServiceProxyName)
	}
	return fmt.Sprintf("check spec.clusterIPs, spec.ipFamilies and spec.ports: kubectl get service -n %s %s -o yaml", svc.Namespace, svc.Name)
}
