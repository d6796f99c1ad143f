package doctor

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// How the cluster's DNS is recognized.
const (
	dnsLabel, dnsLabelValue = "k8s-app", "kube-dns"
	dnsNamespace, dnsName   = "kube-system", "kube-dns"
	// dnsOpenShift is the label of OpenShift's, openshift-dns/dns-default.
	dnsOpenShift = "dns.operator.openshift.io/owning-dns"
	dnsPort      = 53
)

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
			Message: "nodeproxy does not proxy the Service of the cluster's DNS: " + ineligible(svc), Remedy: doIneligible(svc),
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
				Remedy:  fmt.Sprintf("add the port: kubectl edit service -n %s %s", name.Namespace, name.Name),
			})
		}
	}
	for _, f := range e.endpointsOf(svc) {
		f.Check = findings.CheckDNS
		f.Message = "names may not resolve: " + f.Message
		e.Add(f)
	}
}
