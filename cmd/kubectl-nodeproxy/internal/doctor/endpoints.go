package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// doEndpointSlices is what to do where the EndpointSlices of a selector are behind.
const doEndpointSlices = "check kube-controller-manager, which writes EndpointSlices: kubectl -n kube-system get pods"

// endpoints looks whether Services have endpoints that take connections.
func (e *examination) endpoints() {
	if why := e.lacking(cluster.Pods); why != "" {
		e.cannot(CheckEndpoints, "which pods belong to a Service was not looked at: "+why)
	}
	for _, svc := range e.asked() {
		if isDNS(svc) || !render.Eligible(svc) && (e.only == nil || svc.Spec.Type == corev1.ServiceTypeExternalName) {
			continue
		}
		for _, f := range e.endpointsOf(svc) {
			e.add(f)
		}
	}
}

// endpointsOf tells which ports of a Service have no endpoint that takes connections,
// and why.
func (e *examination) endpointsOf(svc *corev1.Service) []Finding {
	_, rules, problems := e.wanted(svc)
	found := e.skipped(svc, problems)
	if svc.Spec.ClusterIP == corev1.ClusterIPNone {
		if f := e.withoutAny(svc); f != nil {
			found = append(found, *f)
		}
		return found
	}
	var dead, terminating []string
	for _, port := range rules.Spec.Ports {
		switch {
		case len(port.Endpoints) == 0:
			dead = append(dead, portName(port.Name, port.Port, port.Protocol))
		case !slices.ContainsFunc(port.Endpoints, func(g v1alpha1.EndpointGroup) bool { return g.State == v1alpha1.EndpointReady }):
			terminating = append(terminating, portName(port.Name, port.Port, port.Protocol))
		}
	}
	if len(terminating) > 0 {
		found = append(found, e.endpointFinding(svc, Warning, "OnlyTerminating",
			fmt.Sprintf("only endpoints that are about to end serve %s", strings.Join(terminating, ", ")),
			"see why there are no new ones: "+getPods(svc)))
	}
	switch {
	case len(dead) == len(rules.Spec.Ports):
		if f := e.withoutAny(svc); f != nil {
			return append(found, *f)
		}
		if len(dead) == 0 {
			return found // it has no ports, which another check tells
		}
		return append(found, e.portless(svc, dead)...)
	case len(dead) > 0:
		return append(found, e.portless(svc, dead)...)
	}
	return append(found, e.familyless(svc, rules)...)
}

func (e *examination) endpointFinding(svc *corev1.Service, severity Severity, name, what, do string) Finding {
	return Finding{
		Severity: severity, Name: name, Check: CheckEndpoints, Service: named(svc).String(),
		key: "endpoints " + named(svc).String(), What: what, Do: do,
	}
}

// withoutAny tells why a Service has no endpoint that takes connections; nil where it
// has some, of whatever port.
func (e *examination) withoutAny(svc *corev1.Service) *Finding {
	name := named(svc)
	all, usable := 0, 0
	for _, slice := range e.slices[name] {
		for i := range slice.Endpoints {
			all++
			if render.Takes(&slice.Endpoints[i]) {
				usable++
			}
		}
	}
	var f Finding
	switch pods := e.podsOf(svc); {
	case usable > 0:
		return nil
	case len(svc.Spec.Selector) == 0 && all == 0:
		f = e.endpointFinding(svc, Problem, "NoEndpointSlices", "the Service has no selector, and nobody has written an EndpointSlice with endpoints for it",
			fmt.Sprintf("write EndpointSlices with the label %s=%s into namespace %s, or give the Service a selector", discoveryv1.LabelServiceName, name.Name, name.Namespace))
	case all > 0:
		f = e.endpointFinding(svc, Problem, "NoReadyEndpoint", "no endpoint is ready: "+whyUnready(pods, all),
			"see what they lack: "+describePods(svc))
	case e.lacking(cluster.Pods) != "":
		f = e.endpointFinding(svc, e.scaledToZero(svc), "NoEndpoint", "there is no endpoint: no pod has the labels "+selector(svc)+", or has an address", "see which pods there are: "+getPods(svc))
	case len(pods) == 0:
		f = e.endpointFinding(svc, e.scaledToZero(svc), "NoPodMatches", "no pod has the labels "+selector(svc)+" that the Service selects",
			fmt.Sprintf("compare them with those of the pods: kubectl get pods -n %s --show-labels; or scale up what makes the pods, unless it is scaled to zero on purpose", name.Namespace))
	case !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.Status.PodIP != "" }):
		f = e.endpointFinding(svc, Problem, "NoReadyEndpoint", "no pod that it selects runs: "+whyUnready(pods, len(pods)), "see what the pods lack: "+describePods(svc))
	default:
		f = e.endpointFinding(svc, Problem, "EndpointSlicesMissing",
			fmt.Sprintf("%s that it selects, and no EndpointSlice names any", output.Plural(len(pods), "pod")),
			doEndpointSlices)
		f.passing = true
	}
	return &f
}

// scaledToZero is how bad it is that a Service has no pods: that may be on purpose,
// unless somebody asks for the Service, or everybody needs it.
func (e *examination) scaledToZero(svc *corev1.Service) Severity {
	if e.only != nil || isDNS(svc) {
		return Problem
	}
	return Warning
}

// portless tells why some ports have no endpoint though the Service has some.
func (e *examination) portless(svc *corev1.Service, dead []string) []Finding {
	const none = "there are endpoints, but none for port %s: %s"
	if len(svc.Spec.Selector) == 0 {
		return []Finding{e.endpointFinding(svc, Problem, "PortWithoutEndpoint",
			fmt.Sprintf(none, strings.Join(dead, ", "), "no EndpointSlice has a port by that name and protocol: port names of hand-written slices must be those of the Service"),
			fmt.Sprintf("compare: kubectl get service,endpointslices -n %s -l %s=%s -o yaml", svc.Namespace, discoveryv1.LabelServiceName, svc.Name))}
	}
	var late, misnamed, names []string
	for _, p := range svc.Spec.Ports {
		switch port := portName(p.Name, p.Port, protocol(p.Protocol)); {
		case !slices.Contains(dead, port):
		case p.TargetPort.Type == intstr.String:
			misnamed, names = append(misnamed, port), append(names, fmt.Sprintf("%q", p.TargetPort.StrVal))
		default: // a number gets into EndpointSlices whatever ports the pods have
			late = append(late, port)
		}
	}
	var found []Finding
	if len(misnamed) > 0 {
		found = append(found, e.endpointFinding(svc, Problem, "PortWithoutEndpoint",
			fmt.Sprintf(none, strings.Join(misnamed, ", "), fmt.Sprintf("its targetPort %s is the name of no port of a pod that it selects", strings.Join(names, ", "))),
			"compare targetPort of the Service with the names of the containers' ports: "+getPods(svc)+" -o yaml"))
	}
	if len(late) > 0 {
		f := e.endpointFinding(svc, Problem, "PortWithoutEndpoint",
			fmt.Sprintf(none, strings.Join(late, ", "), "EndpointSlices do not have the port yet"), doEndpointSlices)
		f.passing = true
		found = append(found, f)
	}
	return found
}

// familyless names the IP families of which a Service has a cluster IP and no endpoint.
func (e *examination) familyless(svc *corev1.Service, rules *v1alpha1.ServiceProxyRules) []Finding {
	six := map[bool]bool{}
	for _, port := range rules.Spec.Ports {
		for _, group := range port.Endpoints {
			for _, address := range group.Addresses {
				six[strings.HasPrefix(address, "[")] = true
			}
		}
	}
	var found []Finding
	for i, ip := range rules.Spec.ClusterIPs {
		if isSix := strings.Contains(ip, ":"); !six[isSix] {
			family := "IPv4"
			if isSix {
				family = "IPv6"
			}
			found = append(found, e.endpointFinding(svc, Warning, "FamilyWithoutEndpoint",
				fmt.Sprintf("its cluster IP %s has no endpoint: none of its endpoints has an %s address", ip, family),
				"see whether the pods have addresses of both families; "+otherwise(i, family)))
		}
	}
	return found
}

// otherwise is what can be done about a Service that has no endpoint of the family of
// its first or second cluster IP. SingleStack keeps the first.
func otherwise(i int, family string) string {
	if i > 0 {
		return "or set ipFamilyPolicy of the Service to SingleStack, which keeps its first family"
	}
	return fmt.Sprintf("or delete the Service and create it again with ipFamilies that leave out %s: its first family cannot be changed", family)
}

// skipped tells of what is in EndpointSlices and cannot be used.
func (e *examination) skipped(svc *corev1.Service, problems []render.Problem) []Finding {
	if len(problems) == 0 {
		return nil
	}
	var texts []string
	for _, p := range problems {
		texts = append(texts, p.String())
	}
	f := e.endpointFinding(svc, Warning, "EndpointsSkipped", "what cannot be used is left out: "+some(texts), "correct the EndpointSlices; those of a selector are kube-controller-manager's")
	f.key = ""
	return []Finding{f}
}

// podsOf are the pods that a Service selects, but for those that have ended.
func (e *examination) podsOf(svc *corev1.Service) []*corev1.Pod {
	if len(svc.Spec.Selector) == 0 {
		return nil
	}
	selects := labels.SelectorFromSet(svc.Spec.Selector)
	var out []*corev1.Pod
	for _, pod := range e.pods[svc.Namespace] {
		if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed && selects.Matches(labels.Set(pod.Labels)) {
			out = append(out, pod)
		}
	}
	return out
}

// whyUnready says what the first of the pods that are not ready lacks.
func whyUnready(pods []*corev1.Pod, all int) string {
	text, more := "", 0
	for _, pod := range pods {
		switch why := cluster.Unready(pod); {
		case why == "":
		case text == "":
			text = fmt.Sprintf("pod %s: %s", pod.Name, why)
		default:
			more++
		}
	}
	switch {
	case text == "":
		return fmt.Sprintf("none of %s says that it is", output.Plural(all, "endpoint"))
	case more > 0:
		text += fmt.Sprintf(" (and %d more)", more)
	}
	return text
}

func selector(svc *corev1.Service) string {
	return labels.SelectorFromSet(svc.Spec.Selector).String()
}

func getPods(svc *corev1.Service) string {
	if len(svc.Spec.Selector) == 0 {
		return getSlices(svc)
	}
	return fmt.Sprintf("kubectl get pods -n %s -l %s", svc.Namespace, selector(svc))
}

func describePods(svc *corev1.Service) string {
	if len(svc.Spec.Selector) == 0 {
		return getSlices(svc)
	}
	return fmt.Sprintf("kubectl describe pods -n %s -l %s", svc.Namespace, selector(svc))
}

// getSlices is where to look where a Service selects no pods.
func getSlices(svc *corev1.Service) string {
	return fmt.Sprintf("kubectl get endpointslices -n %s -l %s=%s -o yaml", svc.Namespace, discoveryv1.LabelServiceName, svc.Name)
}

func protocol(p corev1.Protocol) v1alpha1.Protocol {
	return v1alpha1.Protocol(cmp.Or(p, corev1.ProtocolTCP))
}

// portName names a port for people.
func portName(name string, port int32, protocol v1alpha1.Protocol) string {
	text := fmt.Sprintf("%d/%s", port, protocol)
	if name != "" {
		text += " (" + name + ")"
	}
	return text
}
