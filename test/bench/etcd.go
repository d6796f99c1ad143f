package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// manyServices is from how many on Services are written to etcd: for each, the API server lists all
// cluster IPs in use, so that it takes 25 minutes to create 44,000.
const manyServices = 10_000

// etcd writes to the store of the API server, whose watches bring it what is new there.
type etcd struct{ client *http.Client }

func newEtcd(c *cluster.Cluster) *etcd {
	transport := c.ControlPlane().Transport()
	transport.DisableKeepAlives = false
	transport.MaxIdleConnsPerHost = writers
	return &etcd{&http.Client{Transport: transport, Timeout: time.Minute}}
}

// createService writes the i-th Service as the API server would, with its allocated address, and
// returns that.
func (e *etcd) createService(ctx context.Context, i int) (string, error) {
	// The API server gives out random ones, of which the first are for other purposes.
	n := 512 + i
	ip := fmt.Sprintf("10.96.%d.%d", n>>8, n&0xff)
	name := serviceName(i)
	address := &networkingv1.IPAddress{
		TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "IPAddress"},
		ObjectMeta: metav1.ObjectMeta{
			Name: ip, UID: uid(2, i), CreationTimestamp: metav1.Now(),
			Labels: map[string]string{networkingv1.LabelIPAddressFamily: string(corev1.IPv4Protocol), networkingv1.LabelManagedBy: "ipallocator.k8s.io"},
		},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: namespace, Name: name}},
	}
	if err := e.put(ctx, "/registry/ipaddresses/"+ip, address); err != nil {
		return "", err
	}
	service := service(i)
	service.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
	service.UID, service.CreationTimestamp = uid(1, i), metav1.Now()
	service.Spec.Type = corev1.ServiceTypeClusterIP
	service.Spec.ClusterIP, service.Spec.ClusterIPs = ip, []string{ip}
	service.Spec.IPFamilies, service.Spec.IPFamilyPolicy = []corev1.IPFamily{corev1.IPv4Protocol}, ptr.To(corev1.IPFamilyPolicySingleStack)
	service.Spec.SessionAffinity = corev1.ServiceAffinityNone
	service.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyCluster)
	for j := range service.Spec.Ports {
		port := &service.Spec.Ports[j]
		port.Protocol, port.TargetPort = corev1.ProtocolTCP, intstr.FromInt32(port.Port)
	}
	return ip, e.put(ctx, "/registry/services/specs/"+namespace+"/"+name, service)
}

func uid(kind, i int) types.UID {
	return types.UID(fmt.Sprintf("00000000-0000-4000-800%d-%012d", kind, i))
}

// put writes an object as JSON, which the API server reads as well as its own encoding.
func (e *etcd) put(ctx context.Context, key string, object any) error {
	value, err := json.Marshal(object)
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string][]byte{"key": []byte(key), "value": value})
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1:2379/v3/kv/put", bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := e.client.Do(request)
	if err != nil {
		return fmt.Errorf("writing %s to etcd: %w", key, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, text)
	}
	if err != nil {
		return fmt.Errorf("writing %s to etcd: %w", key, err)
	}
	return nil
}
