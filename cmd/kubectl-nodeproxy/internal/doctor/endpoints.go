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
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// checkEndpointSlices is the remedy for outdated EndpointSlices of a selector.
const checkEndpointSlices = "check kube-controller-manager, which writes EndpointSlices: kubectl -n kube-system get pods"

// endpoints checks whether Services have endpoints that accept connections.
func (e *examination) endpoints() {
	if why := e.Unreadable(cluster.Pods); why != "" {
		e.Skip(findings.CheckEndpoints, "the pods of Services were not checked: "+why)
	}
	for _, svc := range e.asked() {
		if isDNS(svc) || !render.Eligible(svc) && (e.Only == nil || svc.Spec.Type == corev1.ServiceTypeExternalName) {
			continue
		}
		for _, f := range e.endpointsOf(svc) {
			e.Add(f)
		}
	}
}

// endpointsOf reports which ports of a Service have no endpoint that accepts connections,
// and why.
func (e *examination) endpointsOf(svc *corev1.Service) []findings.Finding {
	_, rules, problems := e.desired(svc)
	found := e.skippedEndpoints(svc, problems)
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
		found = append(found, e.endpointFinding(svc, findings.Warning, "OnlyTerminating",
			fmt.Sprintf("only terminating endpoints serve %s", strings.Join(terminating, ", ")),
			"see why there are no new ones: "+getPods(svc)))
	}
	switch {
	case len(dead) == len(rules.Spec.Ports):
		if f := e.withoutAny(svc); f != nil {
			return append(found, *f)
		}
		if len(dead) == 0 {
			return found // it has no ports: see the check of rendering
		}
		return append(found, e.portless(svc, dead)...)
	case len(dead) > 0:
		return append(found, e.portless(svc, dead)...)
	}
	return append(found, e.familyless(svc, rules)...)
}

func (e *examination) endpointFinding(svc *corev1.Service, severity findings.Severity, name, what, do string) findings.Finding {
	return findings.Finding{
		Severity: severity, Reason: name, Check: findings.CheckEndpoints, Service: named(svc).String(),
		Key: "endpoints " + named(svc).String(), Message: what, Remedy: do,
	}
}

// withoutAny reports why a Service has no endpoint that accepts connections; nil if it has
// one, of any port.
func (e *examination) withoutAny(svc *corev1.Service) *findings.Finding {
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
	var f findings.Finding
	switch pods := e.podsOf(svc); {
	case usable > 0:
		return nil
	case len(svc.Spec.Selector) == 0 && all == 0:
		f = e.endpointFinding(svc, findings.Problem, "NoEndpointSlices", "the Service has no selector, and no EndpointSlice has endpoints for it",
			fmt.Sprintf("create EndpointSlices with the label %s=%s in namespace %s, or add a selector to the Service", discoveryv1.LabelServiceName, name.Name, name.Namespace))
	case all > 0:
		f = e.endpointFinding(svc, findings.Problem, "NoReadyEndpoint", "no endpoint is ready: "+whyUnready(pods, all),
			"see why: "+describePods(svc))
	case e.Unreadable(cluster.Pods) != "":
		f = e.endpointFinding(svc, e.scaledToZero(svc), "NoEndpoint", "there is no endpoint: no pod with the labels "+selector(svc)+" has an address", "see which pods there are: "+getPods(svc))
	case len(pods) == 0:
		f = e.endpointFinding(svc, e.scaledToZero(svc), "NoPodMatches", "no pod has the labels "+selector(svc)+" that the Service selects",
			fmt.Sprintf("compare them with the labels of the pods: kubectl get pods -n %s --show-labels; or scale up the workload, unless it is scaled to zero on purpose", name.Namespace))
	case !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.Status.PodIP != "" }):
		f = e.endpointFinding(svc, findings.Problem, "NoReadyEndpoint", "no selected pod runs: "+whyUnready(pods, len(pods)), "see why: "+describePods(svc))
	default:
		f = e.endpointFinding(svc, findings.Problem, "EndpointSlicesMissing",
			fmt.Sprintf("the Service selects %s, but no EndpointSlice has any", output.Plural(len(pods), "pod")),
			checkEndpointSlices)
		f.Transient = true
	}
	return &f
}

// scaledToZero is the severity of a Service without pods: that may be on purpose, unless the
// user asks for the Service, or it is the cluster's DNS.
func (e *examination) scaledToZero(svc *corev1.Service) findings.Severity {
	if e.Only != nil || isDNS(svc) {
		return findings.Problem
	}
	return findings.Warning
}

// portless reports why some ports have no endpoint although the Service has some.
func (e *examination) portless(svc *corev1.Service, dead []string) []findings.Finding {
	const none = "the Service has endpoints, but none for port %s: %s"
	if len(svc.Spec.Selector) == 0 {
		return []findings.Finding{e.endpointFinding(svc, findings.Problem, "PortWithoutEndpoint",
			fmt.Sprintf(none, strings.Join(dead, ", "), "no EndpointSlice has a port with that name and protocol, which must match the Service's"),
			fmt.Sprintf("compare: kubectl get service,endpointslices -n %s -l %s=%s -o yaml", svc.Namespace, discoveryv1.LabelServiceName, svc.Name))}
	}
	var late, misnamed, names []string
	for _, p := range svc.Spec.Ports {
		switch port := portName(p.Name, p.Port, protocol(p.Protocol)); {
		case !slices.Contains(dead, port):
		case p.TargetPort.Type == intstr.String:
			misnamed, names = append(misnamed, port), append(names, fmt.Sprintf("%q", p.TargetPort.StrVal))
		default: // EndpointSlices have a number even if no pod has the port
			late = append(late, port)
		}
	}
	var found []findings.Finding
	if len(misnamed) > 0 {
		found = append(found, e.endpointFinding(svc, findings.Problem, "PortWithoutEndpoint",
			fmt.Sprintf(none, strings.Join(misnamed, ", "), fmt.Sprintf("no selected pod has a port named %s, its targetPort", strings.Join(names, ", "))),
			"compare targetPort of the Service with the port names of the containers: "+getPods(svc)+" -o yaml"))
	}
	if len(late) > 0 {
		f := e.endpointFinding(svc, findings.Problem, "PortWithoutEndpoint",
			fmt.Sprintf(none, strings.Join(late, ", "), "EndpointSlices lack the port"), checkEndpointSlices)
		f.Transient = true
		found = append(found, f)
	}
	return found
}

// familyless reports IP families of which a Service has a cluster IP but no endpoint.
func (e *examination) familyless(svc *corev1.Service, rules *v1alpha1.ServiceProxyRules) []findings.Finding {
	six := map[bool]bool{}
	for _, port := range rules.Spec.Ports {
		for _, group := range port.Endpoints {
			for _, address := range group.Addresses {
				six[strings.HasPrefix(address, "[")] = true
			}
		}
	}
	var found []findings.Finding
	for i, ip := range rules.Spec.ClusterIPs {
		if isSix := strings.Contains(ip, ":"); !six[isSix] {
			family := "IPv4"
			if isSix {
				family = "IPv6"
			}
			found = append(found, e.endpointFinding(svc, findings.Warning, "FamilyWithoutEndpoint",
				fmt.Sprintf("its cluster IP %s has no endpoint: none of its endpoints has an %s address", ip, family),
				"check whether the pods have addresses of both families; "+otherwise(i, family)))
		}
	}
	return found
}

// otherwise is the remedy for a Service without endpoints of the family of its first or
// second cluster IP. SingleStack retains the first.
func otherwise(i int, family string) string {
	if i > 0 {
		return "or set ipFamilyPolicy of the Service to SingleStack, which retains its first family"
	}
	return fmt.Sprintf("or delete the Service and create it again with ipFamilies without %s: the first family cannot be changed", family)
}

// skippedEndpoints reports what agents cannot use of EndpointSlices.
func (e *examination) skippedEndpoints(svc *corev1.Service, problems []render.Problem) []findings.Finding {
	if len(problems) == 0 {
		return nil
	}
	var texts []string
	for _, p := range problems {
		texts = append(texts, p.String())
	}
	f := e.endpointFinding(svc, findings.Warning, "EndpointsSkipped", "unusable endpoints are skipped: "+findings.Some(texts), "correct the EndpointSlices; kube-controller-manager writes those of Services with a selector")
	f.Key = ""
	return []findings.Finding{f}
}

// podsOf are the pods that a Service selects, without those that have finished.
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

// whyUnready returns why the first unready pod is not ready.
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
		return fmt.Sprintf("%s, and none is ready", output.Plural(all, "endpoint"))
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

// getSlices lists the EndpointSlices of a Service that selects no pods.
func getSlices(svc *corev1.Service) string {
	return fmt.Sprintf("kubectl get endpointslices -n %s -l %s=%s -o yaml", svc.Namespace, discoveryv1.LabelServiceName, svc.Name)
}

func protocol(p corev1.Protocol) v1alpha1.Protocol {
	return v1alpha1.Protocol(cmp.Or(p, corev1.ProtocolTCP))
}

// portName is the human-readable name of a port.
func portName(name string, port int32, protocol v1alpha1.Protocol) string {
	text := fmt.Sprintf("%d/%s", port, protocol)
	if name != "" {
		text += " (" + name + ")"
	}
	return text
}
