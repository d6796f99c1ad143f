package doctor

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// What the cluster's DNS is looked for by.
const (
	dnsLabel, dnsLabelValue = "k8s-app", "kube-dns"
	dnsNamespace, dnsName   = "kube-system", "kube-dns"
	// dnsOpenShift is the label of that of OpenShift, openshift-dns/dns-default.
	dnsOpenShift = "dns.operator.openshift.io/owning-dns"
	dnsPort      = 53
)

// isDNS reports whether a Service is that of the cluster's DNS. Headless ones, and those
// without its port, are for looking at its pods, such as at their metrics.
func isDNS(svc *corev1.Service) bool {
	_, openShift := svc.Labels[dnsOpenShift]
	labelled := (openShift || svc.Labels[dnsLabel] == dnsLabelValue) &&
		slices.ContainsFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == dnsPort })
	return svc.Spec.ClusterIP != corev1.ClusterIPNone && (labelled || svc.Namespace == dnsNamespace && svc.Name == dnsName)
}

// dns looks whether pods can have names resolved.
func (e *examination) dns() {
	found := false
	for i := range e.Services {
		if svc := &e.Services[i]; isDNS(svc) {
			found = true
			e.dnsService(svc)
		}
	}
	if !found {
		// Which one pods ask stands in their resolv.conf, which cannot be seen from here.
		e.remark("no Service that is known as that of a cluster's DNS is there (%s/%s, or one with the label %s=%s or %s): where it has another name, see by doctor NAMESPACE/SERVICE whether that one is well",
			dnsNamespace, dnsName, dnsLabel, dnsLabelValue, dnsOpenShift)
	}
}

func (e *examination) dnsService(svc *corev1.Service) {
	name := named(svc)
	if !render.Eligible(svc) {
		e.add(Finding{
			Severity: Problem, Name: "DNSNotProxied", Check: CheckDNS, Service: name.String(),
			What: "names do not resolve by the Service of the cluster's DNS: " + ineligible(svc), Do: doIneligible(svc),
		})
		return
	}
	for _, protocol := range []corev1.Protocol{corev1.ProtocolUDP, corev1.ProtocolTCP} {
		if !slices.ContainsFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool {
			return p.Port == dnsPort && (p.Protocol == protocol || p.Protocol == "" && protocol == corev1.ProtocolTCP)
		}) {
			e.add(Finding{
				Severity: Warning, Name: "DNSPortMissing", Check: CheckDNS, Service: name.String(),
				What: fmt.Sprintf("the Service of the cluster's DNS has no port %d/%s, by which pods ask", dnsPort, protocol),
				Do:   fmt.Sprintf("add the port: kubectl edit service -n %s %s", name.Namespace, name.Name),
			})
		}
	}
	for _, f := range e.endpointsOf(svc) {
		f.Check = CheckDNS
		f.What = "names do not resolve as they should: " + f.What
		e.add(f)
	}
}
