package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// role is the ClusterRole that permits reading a kind; none of Kubernetes' permits only Nodes.
func role(of Kind) string {
	if kinds[of].Group == v1alpha1.GroupVersion.Group {
		return "nodeproxy-viewer"
	}
	return "view"
}

// resource returns the kind as permissions name it.
func resource(of Kind) string {
	if group := kinds[of].Group; group != "" {
		return string(of) + "." + group
	}
	return string(of)
}

// explain returns an error with cause and remedy for one of the API server or of the
// connection to it.
func (r *Reader) explain(of Kind, err error) error {
	switch {
	case apierrors.IsForbidden(err):
		return forbidden(of, err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server %s does not accept the credentials of this kubeconfig: they are missing, wrong or expired", r.server)
	case apierrors.IsNotFound(err) && role(of) == "nodeproxy-viewer":
		return fmt.Errorf("nodeproxy is not installed in the cluster of %s, or is older than this plugin: it has no %s; how to install it: %s", r.server, resource(of), r.docs.URL("install.md#install"))
	case strings.Contains(err.Error(), "TLS handshake timeout"): // which has no type of its own
		return fmt.Errorf("the API server %s accepts connections but does not complete the TLS handshake: it, or a load balancer, proxy or VPN in front of it, hangs or is no API server; check curl -k %s/livez and the address (kubectl config current-context, or --context)", r.server, r.server)
	case spokeHTTP(err):
		return fmt.Errorf("the API server %s requires HTTPS: use an address with https:// (in the kubeconfig, clusters[].cluster.server, or --server)", r.server)
	case isTimeout(err):
		return fmt.Errorf("the API server %s did not respond within %s when listing %s; increase --request-timeout", r.server, r.timeout, of)
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return fmt.Errorf("the API server %s does not return %s: %s", r.server, of, oneLine(err.Error()))
	}
	if unreadable(err) {
		return fmt.Errorf("the response of %s for %s cannot be decoded: is it an API server? (kubectl config current-context, or --context)", r.server, of)
	}
	return fmt.Errorf("the API server %s cannot be reached: %s; is it the right one? (kubectl config current-context, or --context)", r.server, cause(err))
}

// unreadable reports whether there was a response that could not be decoded.
func unreadable(err error) bool {
	var status apierrors.APIStatus
	_, sending := errors.AsType[*url.Error](err)
	return !sending && !isTimeout(err) && !errors.As(err, &status)
}

// userOf finds the user in the API server's message.
var userOf = regexp.MustCompile(`User "([^"]+)" cannot`)

func forbidden(of Kind, err error) error {
	subject := "--user=YOU"
	if found := userOf.FindStringSubmatch(err.Error()); found != nil {
		subject = "--user=" + found[1]
		if account, ok := strings.CutPrefix(found[1], "system:serviceaccount:"); ok {
			subject = "--serviceaccount=" + account
		}
	}
	if of == Nodes {
		return fmt.Errorf("you are not allowed to list nodes: ask an administrator (kubectl create clusterrole nodes-reader --verb=list --resource=nodes; kubectl create clusterrolebinding NAME --clusterrole=nodes-reader %s)", subject)
	}
	return fmt.Errorf("you are not allowed to read %s cluster-wide: ask an administrator to bind the ClusterRole %s to you (kubectl create clusterrolebinding NAME --clusterrole=%s %s)",
		resource(of), role(of), role(of), subject)
}

// spokeHTTP reports whether an HTTPS server in Go, such as an API server, got plain HTTP.
func spokeHTTP(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool {
		return strings.Contains(c.Message, "HTTP request to an HTTPS server")
	})
}

func isTimeout(err error) bool {
	return apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || utilnet.IsTimeout(err)
}

// cause returns the end of a chain of errors.
func cause(err error) string {
	if utilnet.IsConnectionRefused(err) {
		return "connection refused"
	}
	if unknown, is := errors.AsType[*net.DNSError](err); is {
		return fmt.Sprintf("the name %s does not resolve", unknown.Name)
	}
	for next := errors.Unwrap(err); next != nil; next = errors.Unwrap(err) {
		err = next
	}
	return oneLine(err.Error())
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// ErrNoKubeconfig means that no cluster is configured.
var ErrNoKubeconfig = errors.New("no kubeconfig found: set --kubeconfig or the variable KUBECONFIG")

// Configuration returns an error with the cause why a kubeconfig cannot be used.
func Configuration(err error) error {
	if clientcmd.IsEmptyConfig(err) {
		return ErrNoKubeconfig
	}
	return fmt.Errorf("the kubeconfig cannot be used: %s", oneLine(err.Error()))
}

// ErrNoNodes means that no node has NodeProxyRules.
var ErrNoNodes = errors.New("no node has NodeProxyRules yet: check NodeProxy and the controller with kubectl nodeproxy status")

// NoSuchNode reports that a node is not among those with NodeProxyRules.
func NoSuchNode(name string, known []string) error {
	if len(known) == 0 {
		return fmt.Errorf("there is no node %q: %w", name, ErrNoNodes)
	}
	return fmt.Errorf("there is no node %q with NodeProxyRules%s (kubectl get nodeproxyrules lists the nodes)", name, Suggest(name, known))
}

// maxSuggested is how many names are suggested.
const maxSuggested = 3

// Suggest returns similar names, to be appended to an error about an unknown one.
func Suggest(name string, known []string) string {
	near := slices.Clone(known)
	slices.SortFunc(near, func(a, b string) int {
		return cmp.Or(cmp.Compare(distance(name, a), distance(name, b)), cmp.Compare(a, b))
	})
	near = slices.DeleteFunc(near, func(other string) bool {
		return distance(name, other) > max(2, len(name)/3) && !strings.Contains(other, name)
	})
	near = near[:min(len(near), maxSuggested)]
	if len(near) == 0 {
		return ""
	}
	return ": did you mean " + strings.Join(near, " or ") + "?"
}

// distance is the edit distance of two texts.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			before, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, before+cost)
		}
	}
	return row[len(b)]
}

// Rendered returns nil if objects have the ServiceProxyRules of a Service, else an error that
// explains why not: the Service does not exist, or is not proxied. A node may retain its rules
// nevertheless.
func (r *Reader) Rendered(ctx context.Context, name dataplane.ServiceName, objects *Objects, node *v1alpha1.NodeProxyRules) error {
	if objects.RulesOf(name) != nil {
		return nil
	}
	if err := r.Unrendered(ctx, name, node); err != nil {
		return err
	}
	return fmt.Errorf("no Service %s is proxied: there are no ServiceProxyRules %s%s (kubectl get serviceproxyrules lists the proxied Services)%s",
		name, v1alpha1.ServiceProxyRulesName(name.Namespace, name.Name), objects.SuggestService(name), retained(node))
}

// Unrendered returns an error that explains why a Service has no ServiceProxyRules; nil: it does
// not exist, or is not readable. Node may be nil.
func (r *Reader) Unrendered(ctx context.Context, name dataplane.ServiceName, node *v1alpha1.NodeProxyRules) error {
	service := &corev1.Service{}
	if err := r.client.Get(ctx, client.ObjectKey(name), service); err != nil {
		return nil
	}
	if why := Ineligible(service); why != "" {
		return fmt.Errorf("the Service %s is not proxied: %s", name, why)
	}
	return fmt.Errorf("the Service %s has no ServiceProxyRules: the controller has not rendered it; if it cannot, kubectl get events -n %s --field-selector involvedObject.name=%s shows why%s",
		name, name.Namespace, name.Name, retained(node))
}

// Ineligible explains why nodeproxy does not proxy a Service; empty: it does.
func Ineligible(svc *corev1.Service) string {
	value, other := svc.Labels[render.LabelServiceProxyName]
	switch {
	case render.Eligible(svc):
		return ""
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		return "it is of type ExternalName: the cluster's DNS answers with " + svc.Spec.ExternalName
	case svc.Spec.ClusterIP == corev1.ClusterIPNone:
		return "it is headless (clusterIP: None): its clients connect to its pods directly"
	case other:
		return fmt.Sprintf("its label %s=%s assigns it to another proxy", render.LabelServiceProxyName, value)
	case len(svc.Spec.Ports) == 0:
		return "it has no ports"
	}
	return "an IP family has no cluster IP"
}

// retained reports that the node may still serve a Service without object.
func retained(node *v1alpha1.NodeProxyRules) string {
	if node == nil || node.Status.Retained == 0 {
		return ""
	}
	return fmt.Sprintf("; but node %s retains the rules of %s whose objects have vanished, and may still serve it: see Programmed in kubectl describe nodeproxyrules %s",
		node.Name, text.Count(int(node.Status.Retained), "Service"), node.Name)
}
