package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// role returns the ClusterRole that permits reading the kind.
func (k kind) role() string {
	if k.gvk.Group == v1alpha1.GroupVersion.Group {
		return "nodeproxy-viewer"
	}
	return "view"
}

// resource returns the kind as permissions name it.
func resource(of Kind) string {
	if group := kinds()[of].gvk.Group; group != "" {
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
	case apierrors.IsNotFound(err) && kinds()[of].role() == "nodeproxy-viewer":
		return fmt.Errorf("nodeproxy is not installed in the cluster of %s, or is older than this plugin: it has no %s; how to install it: %s", r.server, resource(of), r.docs.URL("install.md#install"))
	case handshakeTimedOut(err):
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
	role := kinds()[of].role()
	return fmt.Errorf("you are not allowed to read %s cluster-wide: ask an administrator to bind the ClusterRole %s to you (kubectl create clusterrolebinding NAME --clusterrole=%s %s)",
		resource(of), role, role, subject)
}

// handshakeTimedOut reports whether a TLS handshake timed out. The error has no type of its
// own.
func handshakeTimedOut(err error) bool {
	return strings.Contains(err.Error(), "TLS handshake timeout")
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
	var network net.Error
	return apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || os.IsTimeout(err) ||
		errors.Is(err, context.DeadlineExceeded) || errors.As(err, &network) && network.Timeout()
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

// unknownNode reports that a node has no rules, and suggests others.
func (r *Reader) unknownNode(ctx context.Context, name string) error {
	names, err := r.Names(ctx, NodeProxyRules)
	if err != nil {
		return err
	}
	known := make([]string, len(names))
	for i, n := range names {
		known[i] = n.Name
	}
	return NoSuchNode(name, known)
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
