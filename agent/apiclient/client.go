package apiclient

import (
	"context"
	"encoding/json"
	"fmt"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// fieldOwner is the field manager of what the agent writes.
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

// WriteStatus writes the status of stored, the newest known version of a NodeProxyRules, and returns
// what is stored then. It sends a merge patch of what differs, so that the API server need not merge
// field by field nor store who owns which. Conditions of other types stay; all else that other programs
// have written is replaced.
func (c *Client) WriteStatus(ctx context.Context, stored *v1alpha1.NodeProxyRules, status *v1alpha1.NodeProxyRulesStatus) (*v1alpha1.NodeProxyRules, error) {
	// What another program has written meanwhile shows in the answer.
	const attempts = 2
	for range attempts {
		body, err := statusPatch(&stored.Status, status)
		if err != nil {
			return nil, err
		}
		answer := &v1alpha1.NodeProxyRules{}
		err = c.rest.Patch(types.MergePatchType).Resource("nodeproxyrules").Name(stored.Name).SubResource("status").
			VersionedParams(&metav1.PatchOptions{FieldManager: fieldOwner}, c.params).
			Body(body).Do(ctx).Into(answer)
		if err != nil {
			return nil, fmt.Errorf("writing the status of NodeProxyRules %q: %w", stored.Name, err)
		}
		answer.ManagedFields = nil
		stored = answer
		if equality.Semantic.DeepEqual(&stored.Status, merged(&stored.Status, status)) {
			break
		}
	}
	return stored, nil
}

// merged is a status with the stored conditions of other types.
func merged(stored, status *v1alpha1.NodeProxyRulesStatus) *v1alpha1.NodeProxyRulesStatus {
	out := status.DeepCopy()
	out.Conditions = nil
	for _, c := range stored.Conditions { // in their order, which is no difference
		if its := meta.FindStatusCondition(status.Conditions, c.Type); its != nil {
			c = *its
		}
		out.Conditions = append(out.Conditions, c)
	}
	for _, c := range status.Conditions {
		if meta.FindStatusCondition(stored.Conditions, c.Type) == nil {
			out.Conditions = append(out.Conditions, c)
		}
	}
	return out
}

// statusPatch turns a stored status into a desired one. It also has the API server drop managedFields,
// which every node would receive with each change of its rules.
func statusPatch(stored, status *v1alpha1.NodeProxyRulesStatus) ([]byte, error) {
	var texts [2][]byte
	for i, one := range []*v1alpha1.NodeProxyRulesStatus{stored, merged(stored, status)} {
		var err error
		if texts[i], err = json.Marshal(map[string]any{"status": one}); err != nil {
			return nil, fmt.Errorf("encoding the status: %w", err)
		}
	}
	patch, err := jsonpatch.CreateMergePatch(texts[0], texts[1])
	if err != nil {
		return nil, fmt.Errorf("comparing the status with the stored one: %w", err)
	}
	return append([]byte(`{"metadata":{"managedFields":[{}]},`), patch[1:]...), nil
}
