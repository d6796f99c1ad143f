package doctor

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
)

// Report is the result of an examination.
type Report struct {
	metav1.TypeMeta `json:",inline"`
	// Time is when the objects were read.
	Time metav1.Time `json:"time"`
	// OK: all checks ran, and there are no findings.
	OK bool `json:"ok"`
	// Service (namespace/name) is the examined one; empty: all.
	Service string `json:"service,omitempty"`
	// Services and Nodes are how many there are. Services is nil if they could not be read.
	Services *int `json:"services,omitempty"`
	Nodes    int  `json:"nodes"`
	// Findings are sorted: what explains most comes first.
	Findings []findings.Finding `json:"findings"`
	// SkippedChecks could not run, or not completely.
	SkippedChecks []findings.SkippedCheck `json:"skippedChecks,omitempty"`
	// Exposure is what clients outside the cluster can reach.
	Exposure []Exposure `json:"exposure"`
	// Notes are not problems.
	Notes []string `json:"notes,omitempty"`
}

// Exposure is a way by which clients outside the cluster reach a Service.
type Exposure struct {
	Service string `json:"service"`
	// Type is NodePort, ExternalIP, LoadBalancerIP or HealthCheckNodePort.
	Type string `json:"type"`
	// Addresses are human-readable; Ports are port/protocol.
	Addresses string   `json:"addresses"`
	Ports     []string `json:"ports"`
	// Clients are the allowed source ranges.
	Clients string `json:"clients"`
	// Policies are the ServiceProxyPolicies that apply.
	Policies []string `json:"policies,omitempty"`
}
