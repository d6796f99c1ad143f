package manifests_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestFlowSchemas: the API server classifies requests of agents and controller as config/flowcontrol
// intends, and leaves those of others as they are.
func TestFlowSchemas(t *testing.T) {
	const rules, other = "/apis/nodeproxy.io/v1alpha1/", "bystander"
	create(t, server.client, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: other}})
	leases := "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases"
	for _, c := range []struct{ account, method, path, schema, level string }{
		{agentAccount, http.MethodGet, rules + "serviceproxyrules", "nodeproxy-agent-reads", "nodeproxy-agent-reads"},
		{agentAccount, http.MethodGet, rules + "nodeproxyrules/n", "nodeproxy-agent-reads", "nodeproxy-agent-reads"},
		{agentAccount, http.MethodPatch, rules + "nodeproxyrules/n/status", "nodeproxy-agent-writes", "nodeproxy-agent-writes"},
		{agentAccount, http.MethodPatch, leases + "/agent.n", "nodeproxy-agent-writes", "nodeproxy-agent-writes"},
		{agentAccount, http.MethodPost, leases, "nodeproxy-agent-writes", "nodeproxy-agent-writes"},
		{controllerAccount, http.MethodGet, rules + "serviceproxyrules", "nodeproxy-controller", "workload-high"},
		{controllerAccount, http.MethodPut, rules + "serviceproxyrules/a.b", "nodeproxy-controller", "workload-high"},
		{other, http.MethodGet, rules + "serviceproxyrules", "service-accounts", "workload-low"},
	} {
		t.Run(fmt.Sprintf("%s %s %s", c.account, c.method, c.path), func(t *testing.T) {
			client, err := rest.HTTPClientFor(configWith(tokenOf(t, c.account, nil)))
			if err != nil {
				t.Fatal(err)
			}
			// The schemas may have been applied a moment ago.
			eventually(t, func(ctx context.Context) error {
				schema, level, err := classified(ctx, client, c.method, server.config.Host+c.path)
				if err == nil && (schema != c.schema || level != c.level) {
					err = fmt.Errorf("schema %s, level %s; want %s, %s", schema, level, c.schema, c.level)
				}
				return err
			})
		})
	}
}

// classified returns the FlowSchema and the priority level of a request, whatever its result.
func classified(ctx context.Context, with *http.Client, method, url string) (schema, level string, err error) {
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader("{}"))
	if err != nil {
		return "", "", err
	}
	request.Header.Set("Content-Type", "application/merge-patch+json")
	response, err := with.Do(request)
	if err != nil {
		return "", "", err
	}
	response.Body.Close()
	if schema, err = nameOf(ctx, &flowcontrolv1.FlowSchemaList{}, response.Header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID)); err != nil {
		return "", "", err
	}
	level, err = nameOf(ctx, &flowcontrolv1.PriorityLevelConfigurationList{}, response.Header.Get(flowcontrolv1.ResponseHeaderMatchedPriorityLevelConfigurationUID))
	return schema, level, err
}

// nameOf returns the name of the object in a list that has a UID.
func nameOf(ctx context.Context, list client.ObjectList, uid string) (string, error) {
	if err := server.client.List(ctx, list); err != nil {
		return "", err
	}
	var names []metav1.ObjectMeta
	switch list := list.(type) {
	case *flowcontrolv1.FlowSchemaList:
		for i := range list.Items {
			names = append(names, list.Items[i].ObjectMeta)
		}
	case *flowcontrolv1.PriorityLevelConfigurationList:
		for i := range list.Items {
			names = append(names, list.Items[i].ObjectMeta)
		}
	}
	for _, o := range names {
		if string(o.UID) == uid {
			return o.Name, nil
		}
	}
	return "", fmt.Errorf("no object has UID %q", uid)
}
