package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
)

// failures are the reasons why endpoints fail, human-readable.
var failures = map[v1alpha1.EndpointFailure]string{
	v1alpha1.EndpointRejects: "rejects them", v1alpha1.EndpointSilent: "does not answer", v1alpha1.EndpointResets: "resets them",
	v1alpha1.EndpointUnreachable: "is unreachable", v1alpha1.EndpointLoops: "is an address of a Service that the agent serves, which could be a loop",
}

// failing reports endpoints that do not accept connections of agents which serve Services themselves: each
// once, for all nodes together.
func (e *examination) failing() {
	var all []v1alpha1.FailingEndpoint
	type failure struct {
		service, port, endpoint string
		why                     v1alpha1.EndpointFailure
	}
	at, nodes := map[failure]int{}, map[int][]string{} // indexes in all, and by them
	for _, node := range e.Nodes {
		report := node.Status.Userspace
		if report == nil || !cluster.Current(node) {
			continue
		}
		if more := int(report.Failing) - len(report.Endpoints); more > 0 {
			e.Notef("%s does not name %s that do not accept connections of its agent", node.Name, text.Count(more, "more endpoint"))
		}
		for _, one := range report.Endpoints {
			same := failure{one.Service, one.Port, one.Endpoint, one.Reason}
			i, known := at[same]
			if known {
				add(&all[i], &one)
			} else {
				i, all = len(all), append(all, one)
				at[same] = i
			}
			nodes[i] = append(nodes[i], node.Name)
		}
	}
	for i := range all {
		if e.Concerns(all[i].Service) {
			e.Add(e.failingEndpoint(&all[i], nodes[i]))
		}
	}
}

// add adds what another node reports about the same endpoint.
func add(to, other *v1alpha1.FailingEndpoint) {
	to.Failed, to.Connections, to.Rejected = to.Failed+other.Failed, to.Connections+other.Connections, to.Rejected+other.Rejected
	if other.Since.Before(&to.Since) {
		to.Since = other.Since
	}
}

// failingEndpoint is the finding about one endpoint. Connections find another one, unless some were rejected.
func (e *examination) failingEndpoint(f *v1alpha1.FailingEndpoint, nodes []string) findings.Finding {
	why, known := failures[f.Reason]
	if !known {
		why = fmt.Sprintf("does not accept them (%s)", f.Reason)
	}
	out := findings.Finding{
		Severity: findings.Warning, Reason: "EndpointFails", Check: findings.CheckEndpoints, Service: f.Service, Nodes: nodes,
		Message: fmt.Sprintf("retried %d of %s to port %s: endpoint %s %s", f.Failed, text.Count(int(f.Connections+f.Rejected), "connection"), f.Port, f.Endpoint, why),
		Since:   f.Since, Remedy: e.Docs.See(e.inspectEndpoint(f), "userspace.md#observe-it"),
	}
	if f.Rejected > 0 {
		out.Severity = findings.Problem
		out.Message += fmt.Sprintf("; rejected %d, because no other endpoint accepted either", f.Rejected)
	}
	return out
}

// inspectEndpoint is how to look at an endpoint, or at those of the Service if no pod of its namespace has
// the address.
func (e *examination) inspectEndpoint(f *v1alpha1.FailingEndpoint) string {
	namespace, name, _ := strings.Cut(f.Service, "/")
	address, _ := netip.ParseAddrPort(f.Endpoint) // else no pod has it
	for _, pod := range e.pods[namespace] {
		ips := append([]corev1.PodIP{{IP: pod.Status.PodIP}}, pod.Status.PodIPs...)
		if !cluster.Finished(pod) && slices.Contains(ips, corev1.PodIP{IP: address.Addr().String()}) {
			return fmt.Sprintf("see why the pod is ready all the same: kubectl describe pod -n %s %s", namespace, pod.Name)
		}
	}
	return fmt.Sprintf("see what the endpoint is: kubectl get endpointslices -n %s -l %s=%s -o yaml", namespace, discoveryv1.LabelServiceName, name)
}
