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

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// rendering looks whether what is stored for the agents is what follows from the
// Services and their EndpointSlices.
func (e *examination) rendering() {
	foreign := []string{}
	for _, svc := range e.asked() {
		name := named(svc)
		stored := e.rules[name]
		switch {
		case e.unknownFormat(CheckRendering, stored):
		case !render.Eligible(svc):
			if _, other := svc.Labels[render.LabelServiceProxyName]; other {
				foreign = append(foreign, name.String())
			}
			if stored != nil && !stored.Spec.Released {
				e.notRendered(name, "StillRendered", stored.ResourceVersion, "its rules are still there though it is no longer proxied: "+ineligible(svc))
			}
		case stored == nil || stored.Spec.Released:
			if e.refusal(name) || e.off() {
				continue
			}
			e.notRendered(name, "NotRendered", "", "the Service is not rendered: no node serves it that does not hold its rules from before")
		default:
			kept, now, _ := e.wanted(svc)
			if equality.Semantic.DeepEqual(kept.Spec, stored.Spec) || equality.Semantic.DeepEqual(now.Spec, stored.Spec) {
				continue
			}
			e.notRendered(name, "RenderedOtherwise", stored.ResourceVersion,
				"nodes serve the Service as it was before: it and its EndpointSlices say otherwise now ("+strings.Join(differing(&stored.Spec, &now.Spec), ", ")+")")
		}
	}
	if len(foreign) > 0 && e.only == nil {
		e.remark("%s left to another proxy by the label %s: %s", output.Plural(len(foreign), "Service"), render.LabelServiceProxyName, some(foreign))
	}
	e.leftOver()
	e.members()
}

// refusal reports whether the controller says that it cannot render a Service.
func (e *examination) refusal(name types.NamespacedName) bool {
	_, refused := e.refused[name]
	return refused
}

// used are the rules that agents use, with their Service. What only a newer release
// understands is not among them, and noted as not looked at by the check.
func (e *examination) used(check Check) iter.Seq2[types.NamespacedName, *v1alpha1.ServiceProxyRules] {
	return func(yield func(types.NamespacedName, *v1alpha1.ServiceProxyRules) bool) {
		for i := range e.ServiceRules {
			rules := &e.ServiceRules[i]
			name, ok := serviceOf(rules)
			if !ok || rules.Spec.Released || e.concerns(name) && e.unknownFormat(check, rules) || rules.Spec.FormatVersion > v1alpha1.FormatVersion {
				continue
			}
			if !yield(name, rules) {
				return
			}
		}
	}
}

// unknownFormat notes rules that only a newer release understands.
func (e *examination) unknownFormat(check Check, stored *v1alpha1.ServiceProxyRules) bool {
	if stored == nil || stored.Spec.FormatVersion <= v1alpha1.FormatVersion {
		return false
	}
	e.cannot(check, e.Newer("ServiceProxyRules "+stored.Name, stored.Spec.FormatVersion, string(e.docs)).Error())
	return true
}

func (e *examination) notRendered(name types.NamespacedName, what, token, text string) {
	e.add(Finding{
		Severity: Problem, Name: what, Check: CheckRendering, Service: name.String(), key: "rendering " + name.String(),
		causes: []string{keyRemoving, keyBehind}, What: text, passing: true, token: token,
		Do: e.docs.See(fmt.Sprintf("see whether its events say why: kubectl get events -n %s --field-selector involvedObject.name=%s", name.Namespace, name.Name), "troubleshooting.md#nodeproxyservicesnotrendered"),
	})
}

// leftOver finds rules whose Service is gone.
func (e *examination) leftOver() {
	if e.only != nil {
		return
	}
	for i := range e.ServiceRules {
		rules := &e.ServiceRules[i]
		if name, ok := serviceOf(rules); ok && e.services[name] == nil && !rules.Spec.Released {
			e.notRendered(name, "StillRendered", rules.ResourceVersion, "there is no such Service any more, and its rules are still there")
		}
	}
}

// members looks whether each node is told which endpoints are on it.
func (e *examination) members() {
	if e.lacking(cluster.NodeProxyRules) != "" {
		return
	}
	byNode := map[string]map[types.NamespacedName]bool{}
	for name, of := range e.slices {
		for _, slice := range of {
			if _, ok := render.ServiceOf(slice); !ok {
				continue
			}
			for _, node := range render.NodesNamed(slice) {
				if byNode[node] == nil {
					byNode[node] = map[types.NamespacedName]bool{}
				}
				byNode[node][name] = true
			}
		}
	}
	leftOut := map[types.NamespacedName]*Finding{}
	for _, node := range e.nodes {
		var of []render.ServiceSlices
		for name := range byNode[node.Name] { // of all Services: what one has depends on what others take
			svc := e.services[name]
			of = append(of, render.ServiceSlices{Service: name, Slices: e.rendered(name), Local: svc != nil && render.HasPolicyLocal(svc)})
		}
		local := render.Members(node.Name, of, node.Spec.Services)
		e.leftOut(node.Name, local.LeftOut, leftOut)
		if equality.Semantic.DeepEqual(e.concerning(local.Services), e.concerning(node.Spec.Services)) {
			continue
		}
		e.add(Finding{
			Severity: Problem, Name: "MembersOutOfDate", Check: CheckRendering, Nodes: []string{node.Name},
			key: "members " + node.Name, causes: []string{keyRemoving, keyBehind}, passing: true, token: node.ResourceVersion,
			What: "the node is told of other endpoints on it than EndpointSlices name, which matters to policy Local",
			Do:   e.doController(),
		})
	}
	for _, name := range slices.SortedFunc(maps.Keys(leftOut), func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }) {
		e.add(*leftOut[name])
	}
}

// concerning are the local endpoints of the Services that are looked at.
func (e *examination) concerning(all []v1alpha1.ServiceMembers) (out []v1alpha1.ServiceMembers) {
	for _, s := range all {
		if e.concerns(types.NamespacedName{Namespace: s.Namespace, Name: s.Name}) {
			out = append(out, s)
		}
	}
	return out
}

// leftOut notes the Services whose local endpoints are left out of the rules of a node.
func (e *examination) leftOut(node string, list []render.LeftOut, found map[types.NamespacedName]*Finding) {
	for _, out := range list {
		if !e.concerns(out.Service) {
			continue
		}
		f := found[out.Service]
		if f == nil {
			f = &Finding{
				Severity: Problem, Name: "LocalEndpointsLeftOut", Check: CheckRendering, Service: out.Service.String(),
				What: "the rules of the node do not contain the local endpoints of the Service, so that policy Local finds none there: " + out.Why(),
				Do:   e.docs.See("give the Services of its namespace fewer ports, or spread their pods over more nodes", "security.md#who-can-do-what-harm"),
			}
			found[out.Service] = f
		}
		f.Nodes = append(f.Nodes, node)
	}
}

// differing names the fields of rules that differ, in JSON.
func differing(a, b *v1alpha1.ServiceProxyRulesSpec) []string {
	var out []string
	va, vb := reflect.ValueOf(*a), reflect.ValueOf(*b)
	for i := range va.NumField() {
		if !equality.Semantic.DeepEqual(va.Field(i).Interface(), vb.Field(i).Interface()) {
			name, _, _ := strings.Cut(va.Type().Field(i).Tag.Get("json"), ",")
			if name != "endpointCount" && name != "portSummary" && name != "clusterIP" { // they follow from others
				out = append(out, name)
			}
		}
	}
	return out
}

// about tells how it is with the one Service that is asked for.
func (e *examination) about() {
	svc := e.services[*e.only]
	if svc == nil {
		return
	}
	if render.Eligible(svc) {
		e.whereServed()
		return
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName || svc.Spec.ClusterIP == corev1.ClusterIPNone {
		e.remark("nodeproxy has nothing to do with this Service: %s", ineligible(svc))
		return
	}
	e.add(Finding{
		Severity: Problem, Name: "NotEligible", Check: CheckRendering, Service: named(svc).String(),
		What: "nodeproxy does not serve the Service: " + ineligible(svc), Do: doIneligible(svc),
	})
}

// whereServed tells how many endpoints the Service has, and where.
func (e *examination) whereServed() {
	all, take := 0, 0
	nodes := map[string]int{}
	for _, slice := range e.rendered(*e.only) {
		for i := range slice.Endpoints {
			all++
			if endpoint := &slice.Endpoints[i]; render.Takes(endpoint) {
				take++
				on := "no node"
				if endpoint.NodeName != nil {
					on = *endpoint.NodeName
				}
				nodes[on]++
			}
		}
	}
	if take == 0 {
		return // which the check of endpoints tells
	}
	var texts []string
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		texts = append(texts, fmt.Sprintf("%d on %s", nodes[node], node))
	}
	e.remark("usable: %d of %s (%s)", take, output.Plural(all, "endpoint"), some(texts))
}

// ineligible says why a Service is not proxied.
func ineligible(svc *corev1.Service) string {
	value, other := svc.Labels[render.LabelServiceProxyName]
	switch {
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		return "it is of type ExternalName: its name is another name for " + svc.Spec.ExternalName + ", which the cluster's DNS answers"
	case svc.Spec.ClusterIP == corev1.ClusterIPNone:
		return "it is headless (clusterIP None): its name resolves to the addresses of the pods themselves"
	case other:
		return fmt.Sprintf("its label %s=%s leaves it to another proxy", render.LabelServiceProxyName, value)
	case len(svc.Spec.Ports) == 0:
		return "it has no ports"
	}
	return "it has no cluster IP of one of its IP families"
}

func doIneligible(svc *corev1.Service) string {
	if _, other := svc.Labels[render.LabelServiceProxyName]; other {
		return fmt.Sprintf("see whether that proxy runs, or take the label off: kubectl label service -n %s %s %s-", svc.Namespace, svc.Name, render.LabelServiceProxyName)
	}
	return fmt.Sprintf("see spec.clusterIPs, spec.ipFamilies and spec.ports: kubectl get service -n %s %s -o yaml", svc.Namespace, svc.Name)
}
