package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// etcd's limits for one transaction: --max-txn-ops, and --max-request-bytes with room to spare.
const (
	maxOperations       = 128
	maxTransactionBytes = 1 << 20
	// writers are the transactions at a time.
	writers = 4
)

// Entry is an object in etcd.
type Entry struct {
	Key    string
	Object runtime.Object // with its kind
}

// Store writes objects to etcd, in the API server's encoding, whose watches bring it what is new there. Through
// the API server, thousands of Services would take minutes: for each, it lists all cluster IPs in use.
type Store struct {
	client  *http.Client
	encoder runtime.Encoder
}

// NewStore returns the Store of a cluster.
func NewStore(c *cluster.Cluster) *Store {
	transport := c.ControlPlane().Transport()
	transport.DisableKeepAlives = false
	transport.MaxIdleConnsPerHost = writers
	return newStore(transport)
}

func newStore(transport http.RoundTripper) *Store {
	return &Store{
		client:  &http.Client{Transport: transport, Timeout: time.Minute},
		encoder: protobuf.NewSerializer(scheme.Scheme, scheme.Scheme),
	}
}

// operation is a request of etcd's JSON gateway, in which bytes are base64, as in encoding/json.
type operation struct {
	Put struct {
		Key   []byte `json:"key"`
		Value []byte `json:"value"`
	} `json:"requestPut"`
}

// Write writes all entries, in as few transactions as possible.
func (s *Store) Write(ctx context.Context, entries []Entry) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	transactions := make(chan []operation)
	var group sync.WaitGroup
	for range writers {
		group.Go(func() {
			for transaction := range transactions {
				if err := s.commit(ctx, transaction); err != nil {
					cancel(err)
				}
			}
		})
	}
	err := s.batch(ctx, entries, transactions)
	close(transactions)
	group.Wait()
	if err != nil {
		return err
	}
	return context.Cause(ctx)
}

// batch encodes entries and groups them into transactions.
func (s *Store) batch(ctx context.Context, entries []Entry, out chan<- []operation) error {
	var transaction []operation
	size := 0
	flush := func() {
		if len(transaction) == 0 {
			return
		}
		select {
		case out <- transaction:
		case <-ctx.Done():
		}
		transaction, size = nil, 0
	}
	for _, e := range entries {
		var value bytes.Buffer
		if err := s.encoder.Encode(e.Object, &value); err != nil {
			return fmt.Errorf("encoding %s: %w", e.Key, err)
		}
		if len(transaction) == maxOperations || size+value.Len() > maxTransactionBytes {
			flush()
		}
		var o operation
		o.Put.Key, o.Put.Value = []byte(e.Key), value.Bytes()
		transaction = append(transaction, o)
		size += value.Len()
	}
	flush()
	return nil
}

func (s *Store) commit(ctx context.Context, transaction []operation) error {
	body, err := json.Marshal(map[string]any{"success": transaction})
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1:2379/v3/kv/txn", bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := s.client.Do(request)
	if err != nil {
		return fmt.Errorf("writing to etcd: %w", err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err == nil && (response.StatusCode != http.StatusOK || !strings.Contains(string(answer), `"succeeded":true`)) {
		err = fmt.Errorf("%s: %s", response.Status, answer)
	}
	if err != nil {
		return fmt.Errorf("writing to etcd: %w", err)
	}
	return nil
}
