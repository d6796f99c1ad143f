package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestWrite writes Services as the API server reads them, in transactions that etcd takes.
func TestWrite(t *testing.T) {
	var mu sync.Mutex // guards written and transactions
	written, transactions, answer := map[string][]byte{}, 0, `{"succeeded":true}`
	s := newStore(roundTrip(func(r *http.Request) (*http.Response, error) {
		var body struct{ Success []operation }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		transactions++
		for _, o := range body.Success {
			written[string(o.Put.Key)] = o.Put.Value
		}
		if len(body.Success) > maxOperations {
			return nil, errors.New("too many operations")
		}
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(answer))}, nil
	}))
	var entries []Entry
	for i := range 100 {
		service := Service{Namespace: "shop", Name: fmt.Sprint("web-", i), UID: UID(1, i), TargetPort: 8080}
		entries = append(entries, service.Entries(fmt.Sprintf("10.96.1.%d", i), nil)...)
	}
	if err := s.Write(t.Context(), entries); err != nil || transactions != 2 || len(written) != 200 {
		t.Errorf("%d objects in %d transactions: %v", len(written), transactions, err)
	}
	var service corev1.Service
	_, _, err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Decode(written["/registry/services/specs/shop/web-7"], nil, &service)
	if err != nil || service.Spec.ClusterIP != "10.96.1.7" || service.Kind != "Service" || written["/registry/ipaddresses/10.96.1.7"] == nil {
		t.Errorf("%v: %+v", err, service)
	}
	answer = `{}`
	if err := s.Write(t.Context(), entries); err == nil {
		t.Error("no error if etcd does not take a transaction")
	}
}
