package apiclient

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// fieldOwner is the field manager of the agent's server-side apply.
const fieldOwner = "nodeproxy-agent"

// Client reads and writes the kinds of nodeproxy.io. It knows no other kinds: a full client set
// would cost the agent more memory than its rules.
type Client struct {
	rest   rest.Interface
	params runtime.ParameterCodec
}

// New returns a client. config determines how to reach which API server.
func New(config *rest.Config) (*Client, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("registering kinds: %w", err)
	}
	config = rest.CopyConfig(config)
	config.APIPath = "/apis"
	config.GroupVersion = &v1alpha1.GroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("creating a client for the API server: %w", err)
	}
	return &Client{rest: client, params: runtime.NewParameterCodec(scheme)}, nil
}

// ApplyStatus writes the status of a NodeProxyRules by server-side apply.
func (c *Client) ApplyStatus(ctx context.Context, name string, status *v1alpha1.NodeProxyRulesStatus) (*v1alpha1.NodeProxyRules, error) {
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
	stored := &v1alpha1.NodeProxyRules{}
	err = c.rest.Patch(types.ApplyYAMLPatchType).Resource("nodeproxyrules").Name(name).SubResource("status").
		VersionedParams(&metav1.PatchOptions{FieldManager: fieldOwner, Force: new(true)}, c.params).
		Body(body).Do(ctx).Into(stored)
	if err != nil {
		return nil, fmt.Errorf("applying the status of NodeProxyRules %q: %w", name, err)
	}
	rest := stored.Status.DeepCopy()
	rest.Conditions = status.Conditions // those of other types stay
	if !equality.Semantic.DeepEqual(rest, status) {
		// Server-side apply leaves fields of other owners that the agent never sends.
		if stored, err = c.replaceStatus(ctx, stored, status); err != nil {
			return nil, err
		}
	}
	stored.ManagedFields = nil
	return stored, nil
}

// replaceStatus writes the whole status except conditions of other types.
func (c *Client) replaceStatus(ctx context.Context, stored *v1alpha1.NodeProxyRules, status *v1alpha1.NodeProxyRulesStatus) (*v1alpha1.NodeProxyRules, error) {
	desired := stored.DeepCopy()
	status.DeepCopyInto(&desired.Status)
	desired.Status.Conditions = stored.Status.Conditions // with the applied ones
	out := &v1alpha1.NodeProxyRules{}
	err := c.rest.Put().Resource("nodeproxyrules").Name(stored.Name).SubResource("status").
		VersionedParams(&metav1.UpdateOptions{FieldManager: fieldOwner}, c.params).
		Body(desired).Do(ctx).Into(out)
	if err != nil {
		return nil, fmt.Errorf("replacing the status of NodeProxyRules %q, which other writers have changed: %w", stored.Name, err)
	}
	return out, nil
}
