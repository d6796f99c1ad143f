package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// fieldOwner owns what the agent writes by server-side apply.
const fieldOwner = "nodeproxy-agent"

// dialTimeout is how long one of several API servers may take to accept a
// connection before the next is tried.
const dialTimeout = 5 * time.Second

// Client reads and writes the kinds of nodeproxy.io. It knows no other kinds:
// a full client set would cost the agent more memory than its rules.
type Client struct {
	rest   rest.Interface
	params runtime.ParameterCodec
	server string
}

// NewClient returns a client. With several servers it uses the first that can
// be connected to; without any, the host of config. Their certificates are
// checked for the name that config gives.
func NewClient(config *rest.Config, servers []string) (*Client, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("registering kinds: %w", err)
	}
	config = rest.CopyConfig(config)
	config.APIPath = "/apis"
	config.GroupVersion = &v1alpha1.GroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	if len(servers) > 0 {
		hosts, err := parseServers(servers)
		if err != nil {
			return nil, err
		}
		if err := keepServerName(config); err != nil {
			return nil, err
		}
		config.Host = servers[0]
		config.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return &failover{next: next, hosts: hosts}
		})
	}
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("making a client for the API server: %w", err)
	}
	return &Client{rest: client, params: runtime.NewParameterCodec(scheme), server: config.Host}, nil
}

// keepServerName makes TLS go on to be checked for the host of config when
// another is put in its place: certificates are often for that name only.
func keepServerName(config *rest.Config) error {
	if config.Host == "" || config.ServerName != "" || config.Insecure {
		return nil
	}
	original, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return fmt.Errorf("parsing the API server %q of the kubeconfig: %w", config.Host, err)
	}
	config.ServerName = original.Hostname()
	return nil
}

func parseServers(servers []string) ([]string, error) {
	hosts := make([]string, 0, len(servers))
	for _, server := range servers {
		u, err := url.Parse(server)
		if err != nil || u.Scheme != "https" || u.Host == "" || (u.Path != "" && u.Path != "/") {
			return nil, fmt.Errorf("API server %q is not a URL like https://192.0.2.10:6443", server)
		}
		host := u.Host
		if u.Port() == "" {
			host = net.JoinHostPort(u.Hostname(), "443")
		}
		hosts = append(hosts, host)
	}
	return hosts, nil
}

// failover sends requests to one of several hosts, and to the next one after
// a request that got no answer.
type failover struct {
	next    http.RoundTripper
	hosts   []string
	current atomic.Uint64
}

// RoundTrip implements http.RoundTripper.
func (f *failover) RoundTrip(request *http.Request) (*http.Response, error) {
	turn := f.current.Load()
	sent := request.Clone(request.Context())
	sent.URL.Host = f.hosts[turn%uint64(len(f.hosts))]
	sent.Host = ""
	response, err := f.next.RoundTrip(sent)
	if err != nil && request.Context().Err() == nil {
		// Callers try again; only the first of those that failed here turns.
		f.current.CompareAndSwap(turn, turn+1)
	}
	return response, err
}

// applyStatus writes the status of a NodeProxyRules by server-side apply.
func (c *Client) applyStatus(ctx context.Context, name string, status *v1alpha1.NodeProxyRulesStatus) (*v1alpha1.NodeProxyRules, error) {
	patch := struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        map[string]string              `json:"metadata"`
		Status          *v1alpha1.NodeProxyRulesStatus `json:"status"`
	}{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeProxyRules"},
		Metadata: map[string]string{"name": name},
		Status:   status,
	}
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("encoding the status: %w", err)
	}
	force := true
	stored := &v1alpha1.NodeProxyRules{}
	err = c.rest.Patch(types.ApplyYAMLPatchType).Resource("nodeproxyrules").Name(name).SubResource("status").
		VersionedParams(&metav1.PatchOptions{FieldManager: fieldOwner, Force: &force}, c.params).
		Body(body).Do(ctx).Into(stored)
	if err != nil {
		return nil, fmt.Errorf("applying the status of NodeProxyRules %q: %w", name, err)
	}
	if foreign(&stored.Status, status) {
		// Server-side apply leaves fields that others own and that we never send.
		if stored, err = c.replaceStatus(ctx, stored, status); err != nil {
			return nil, err
		}
	}
	stored.ManagedFields = nil
	return stored, nil
}

// foreign reports whether a stored status says more than the one that was
// applied, besides conditions of other types.
func foreign(stored, applied *v1alpha1.NodeProxyRulesStatus) bool {
	rest := stored.DeepCopy()
	rest.Conditions = applied.Conditions
	return !equality.Semantic.DeepEqual(rest, applied)
}

// replaceStatus writes the whole status but for conditions of other types.
func (c *Client) replaceStatus(ctx context.Context, stored *v1alpha1.NodeProxyRules, status *v1alpha1.NodeProxyRulesStatus) (*v1alpha1.NodeProxyRules, error) {
	wanted := stored.DeepCopy()
	status.DeepCopyInto(&wanted.Status)
	wanted.Status.Conditions = stored.Status.Conditions // ours are among them by now
	out := &v1alpha1.NodeProxyRules{}
	err := c.rest.Put().Resource("nodeproxyrules").Name(stored.Name).SubResource("status").
		VersionedParams(&metav1.UpdateOptions{FieldManager: fieldOwner}, c.params).
		Body(wanted).Do(ctx).Into(out)
	if err != nil {
		return nil, fmt.Errorf("replacing the status of NodeProxyRules %q, into which others have written: %w", stored.Name, err)
	}
	return out, nil
}
