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

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// checkEndpointSlices is the remedy for outdated EndpointSlices of a selector.
const checkEndpointSlices = "check kube-controller-manager, which writes EndpointSlices: kubectl -n kube-system get pods"

// How the cluster's DNS is recognized.
const (
	dnsLabel, dnsLabelValue = "k8s-app", "kube-dns"
	dnsNamespace, dnsName   = "kube-system", "kube-dns"
	// dnsOpenShift is the label of OpenShift's, openshift-dns/dns-default.
	dnsOpenShift = "dns.operator.openshift.io/owning-dns"
	dnsPort      = 53
)

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
	c := &endpointCheck{examination: e, svc: svc}
	_, rules, problems := e.desired(svc)
	if len(problems) > 0 {
		c.add(findings.Warning, "EndpointsSkipped", "unusable endpoints are skipped: "+findings.Some(problems),
			"correct the EndpointSlices; kube-controller-manager writes those of Services with a selector").Key = ""
	}
	if svc.Spec.ClusterIP == corev1.ClusterIPNone {
		c.withoutAny()
		return c.found
	}
	var dead, terminating []string
	for _, port := range rules.Spec.Ports {
		switch {
		case len(rules.Spec.EndpointsOf(&port)) == 0:
			dead = append(dead, portName(port.Name, port.Port, port.Protocol))
		case len(known(&rules.Spec, &port, true)) == 0:
			terminating = append(terminating, portName(port.Name, port.Port, port.Protocol))
		}
	}
	if len(terminating) > 0 {
		c.add(findings.Warning, "OnlyTerminating", "only terminating endpoints serve "+strings.Join(terminating, ", "),
			"see why there are no new ones: "+inspect("get", svc))
	}
	switch {
	case len(dead) == len(rules.Spec.Ports) && c.withoutAny():
	case len(dead) > 0:
		c.portless(dead)
	case len(rules.Spec.Ports) > 0: // else see the check of rendering
		c.familyless(rules)
	}
	return c.found
}

// endpointCheck collects findings about the endpoints of a Service.
type endpointCheck struct {
	*examination
	svc   *corev1.Service
	found []findings.Finding
}

func (c *endpointCheck) add(severity findings.Severity, reason, message, remedy string) *findings.Finding {
	c.found = append(c.found, findings.Finding{
		Severity: severity, Reason: reason, Check: findings.CheckEndpoints, Service: named(c.svc).String(),
		Key: "endpoints " + named(c.svc).String(), Message: message, Remedy: remedy,
	})
	return &c.found[len(c.found)-1]
}

// withoutAny reports whether a Service has no endpoint that accepts connections, of any port,
// and adds why.
func (c *endpointCheck) withoutAny() bool {
	svc := c.svc
	all, usable := 0, 0
	for _, slice := range c.slices[named(svc)] {
		for i := range slice.Endpoints {
			all++
			if render.Takes(&slice.Endpoints[i]) {
				usable++
			}
		}
	}
	// A Service may be scaled to zero on purpose, unless the user asks for it, or it is the
	// cluster's DNS.
	scaledToZero := findings.Warning
	if c.Only != nil || isDNS(svc) {
		scaledToZero = findings.Problem
	}
	switch pods := c.podsOf(svc); {
	case usable > 0:
		return false
	case len(svc.Spec.Selector) == 0 && all == 0:
		c.add(findings.Problem, "NoEndpointSlices", "the Service has no selector, and no EndpointSlice has endpoints for it",
			fmt.Sprintf("create EndpointSlices with the label %s=%s in namespace %s, or add a selector to the Service", discoveryv1.LabelServiceName, svc.Name, svc.Namespace))
	case all > 0:
		c.add(findings.Problem, "NoReadyEndpoint", "no endpoint is ready: "+whyUnready(pods, all), "see why: "+inspect("describe", svc))
	case c.Unreadable(cluster.Pods) != "":
		c.add(scaledToZero, "NoEndpoint", "there is no endpoint: no pod with the labels "+selector(svc)+" has an address", "see which pods there are: "+inspect("get", svc))
	case len(pods) == 0:
		c.add(scaledToZero, "NoPodMatches", "no pod has the labels "+selector(svc)+" that the Service selects",
			fmt.Sprintf("compare them with the labels of the pods: kubectl get pods -n %s --show-labels; or scale up the workload, unless it is scaled to zero on purpose", svc.Namespace))
	case !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.Status.PodIP != "" }):
		c.add(findings.Problem, "NoReadyEndpoint", "no selected pod runs: "+whyUnready(pods, len(pods)), "see why: "+inspect("describe", svc))
	default:
		c.add(findings.Problem, "EndpointSlicesMissing",
			fmt.Sprintf("the Service selects %s, but no EndpointSlice has any", text.Count(len(pods), "pod")), checkEndpointSlices).Transient = true
	}
	return true
}

// portless adds why some ports have no endpoint although the Service has some.
func (c *endpointCheck) portless(dead []string) {
	svc := c.svc
	add := func(ports []string, why, remedy string) *findings.Finding {
		return c.add(findings.Problem, "PortWithoutEndpoint", fmt.Sprintf("the Service has endpoints, but none for port %s: %s", strings.Join(ports, ", "), why), remedy)
	}
	if len(svc.Spec.Selector) == 0 {
		add(dead, "no EndpointSlice has a port with that name and protocol, which must match the Service's",
			fmt.Sprintf("compare: kubectl get service,endpointslices -n %s -l %s=%s -o yaml", svc.Namespace, discoveryv1.LabelServiceName, svc.Name))
		return
	}
	var late, misnamed, names []string
	for _, p := range svc.Spec.Ports {
		switch port := portName(p.Name, p.Port, v1alpha1.Protocol(cmp.Or(p.Protocol, corev1.ProtocolTCP))); {
		case !slices.Contains(dead, port):
		case p.TargetPort.Type == intstr.String:
			misnamed, names = append(misnamed, port), append(names, fmt.Sprintf("%q", p.TargetPort.StrVal))
		default: // EndpointSlices have a number even if no pod has the port
			late = append(late, port)
		}
	}
	if len(misnamed) > 0 {
		add(misnamed, fmt.Sprintf("no selected pod has a port named %s, its targetPort", strings.Join(names, ", ")),
			"compare targetPort of the Service with the port names of the containers: "+inspect("get", svc)+" -o yaml")
	}
	if len(late) > 0 {
		add(late, "EndpointSlices lack the port", checkEndpointSlices).Transient = true
	}
}

// familyless adds IP families of which a Service has a cluster IP but no endpoint.
func (c *endpointCheck) familyless(rules *v1alpha1.ServiceProxyRules) {
	six := map[bool]bool{}
	for _, port := range rules.Spec.Ports {
		for address := range known(&rules.Spec, &port, false) {
			six[strings.HasPrefix(address, "[")] = true
		}
	}
	for i, ip := range rules.Spec.ClusterIPs {
		isSix := strings.Contains(ip, ":")
		if six[isSix] {
			continue
		}
		family := dataplane.IPv4
		if isSix {
			family = dataplane.IPv6
		}
		remedy := "or set ipFamilyPolicy of the Service to SingleStack, which retains its first family"
		if i == 0 {
			remedy = fmt.Sprintf("or delete the Service and create it again with ipFamilies without %s: the first family cannot be changed", family)
		}
		c.add(findings.Warning, "FamilyWithoutEndpoint", fmt.Sprintf("its cluster IP %s has no endpoint: none of its endpoints has an %s address", ip, family),
			"check whether the pods have addresses of both families; "+remedy)
	}
}

// podsOf are the pods that a Service selects, without those that have finished.
func (e *examination) podsOf(svc *corev1.Service) []*corev1.Pod {
	if len(svc.Spec.Selector) == 0 {
		return nil
	}
	selects := labels.SelectorFromSet(svc.Spec.Selector)
	var out []*corev1.Pod
	for _, pod := range e.pods[svc.Namespace] {
		if !cluster.Finished(pod) && selects.Matches(labels.Set(pod.Labels)) {
			out = append(out, pod)
		}
	}
	return out
}

// whyUnready returns why the first unready pod is not ready.
func whyUnready(pods []*corev1.Pod, all int) string {
	var unready []string
	for _, pod := range pods {
		if why := findings.Unready(pod); why != "" {
			unready = append(unready, fmt.Sprintf("pod %s: %s", pod.Name, why))
		}
	}
	switch more := len(unready) - 1; {
	case more < 0:
		return text.Count(all, "endpoint") + ", and none is ready"
	case more > 0:
		return fmt.Sprintf("%s (and %d more)", unready[0], more)
	}
	return unready[0]
}

func selector(svc *corev1.Service) string {
	return labels.SelectorFromSet(svc.Spec.Selector).String()
}

// inspect returns the command that gets or describes the pods of a Service or, if it selects
// none, the one that gets its EndpointSlices.
func inspect(verb string, svc *corev1.Service) string {
	if len(svc.Spec.Selector) == 0 {
		return fmt.Sprintf("kubectl get endpointslices -n %s -l %s=%s -o yaml", svc.Namespace, discoveryv1.LabelServiceName, svc.Name)
	}
	return fmt.Sprintf("kubectl %s pods -n %s -l %s", verb, svc.Namespace, selector(svc))
}

// portName is the human-readable name of a port.
func portName(name string, port int32, protocol v1alpha1.Protocol) string {
	text := fmt.Sprintf("%d/%s", port, protocol)
	if name != "" {
		text += " (" + name + ")"
	}
	return text
}

// isDNS reports whether a Service is the cluster's DNS. Headless Services, and those without
// its port, have other purposes, such as metrics.
func isDNS(svc *corev1.Service) bool {
	_, openShift := svc.Labels[dnsOpenShift]
	labelled := (openShift || svc.Labels[dnsLabel] == dnsLabelValue) &&
		slices.ContainsFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == dnsPort })
	return svc.Spec.ClusterIP != corev1.ClusterIPNone && (labelled || svc.Namespace == dnsNamespace && svc.Name == dnsName)
}

// dns checks whether pods can resolve names.
func (e *examination) dns() {
	found := false
	for i := range e.Services {
		if svc := &e.Services[i]; isDNS(svc) {
			found = true
			e.dnsService(svc)
		}
	}
	if !found {
		// The pods' resolv.conf names it, which the plugin cannot read.
		e.Notef("no Service of a cluster DNS found (%s/%s, or one with the label %s=%s or %s): if it has another name, check it with doctor NAMESPACE/SERVICE",
			dnsNamespace, dnsName, dnsLabel, dnsLabelValue, dnsOpenShift)
	}
}

func (e *examination) dnsService(svc *corev1.Service) {
	name := named(svc)
	if !render.Eligible(svc) {
		e.Add(findings.Finding{
			Severity: findings.Problem, Reason: "DNSNotProxied", Check: findings.CheckDNS, Service: name.String(),
			Message: "nodeproxy does not proxy the Service of the cluster's DNS: " + cluster.Ineligible(svc), Remedy: remedyIneligible(svc),
		})
		return
	}
	for _, protocol := range []corev1.Protocol{corev1.ProtocolUDP, corev1.ProtocolTCP} {
		if !slices.ContainsFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool {
			return p.Port == dnsPort && (p.Protocol == protocol || p.Protocol == "" && protocol == corev1.ProtocolTCP)
		}) {
			e.Add(findings.Finding{
				Severity: findings.Warning, Reason: "DNSPortMissing", Check: findings.CheckDNS, Service: name.String(),
				Message: fmt.Sprintf("the Service of the cluster's DNS lacks port %d/%s, which pods use", dnsPort, protocol),
				Remedy:  "add the port: " + editService(name),
			})
		}
	}
	for _, f := range e.endpointsOf(svc) {
		f.Check = findings.CheckDNS
		f.Message = "names may not resolve: " + f.Message
		e.Add(f)
	}
}
