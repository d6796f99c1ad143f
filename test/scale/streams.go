package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

const (
	rulesPath = "/apis/nodeproxy.io/v1alpha1/"
	// agentUser is bound to the generated roles of agents by package install.
	agentUser = "nodeproxy-agent"
	// maxEvent bounds one event of a watch that is read as a whole.
	maxEvent = 4 << 20
)

// stream is the watches of one client.
type stream struct {
	client *http.Client
	host   string
	bytes  atomic.Int64 // received in all its watches
	failed func(error)
}

// newStream returns a client with a connection of its own.
func newStream(config *rest.Config, failed func(error)) (*stream, error) {
	tls, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	return &stream{client: &http.Client{Transport: &http.Transport{TLSClientConfig: tls, ForceAttemptHTTP2: true}}, host: config.Host, failed: failed}, nil
}

// get sends a request; the caller closes the body.
func (s *stream) get(ctx context.Context, path string, query url.Values, header http.Header) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.host+path+"?"+query.Encode(), http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header = header
	response, err := s.client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10)) // for the message alone
		response.Body.Close()
		return nil, fmt.Errorf("%s: %s: %s", path, response.Status, text)
	}
	return response, nil
}

// version is the current resource version of a resource.
func (s *stream) version(ctx context.Context, path string) (string, error) {
	response, err := s.get(ctx, path, url.Values{"limit": {"1"}}, http.Header{"Accept": {"application/json"}})
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	var list struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	err = json.NewDecoder(response.Body).Decode(&list)
	return list.Metadata.ResourceVersion, err
}

// count returns how many objects of a resource there are.
func (s *stream) count(ctx context.Context, path string) (int, error) {
	response, err := s.get(ctx, path, url.Values{"limit": {"1"}}, http.Header{"Accept": {"application/json"}})
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	var list struct {
		Metadata struct {
			RemainingItemCount int `json:"remainingItemCount"`
		} `json:"metadata"`
		Items []json.RawMessage `json:"items"`
	}
	err = json.NewDecoder(response.Body).Decode(&list)
	return len(list.Items) + list.Metadata.RemainingItemCount, err
}

// list reads all that an agent reads when it starts, as agents do, and returns the bytes received. The
// header keeps net/http from decompressing them.
func list(ctx context.Context, config *rest.Config) (int64, error) {
	s, err := newStream(config, nil)
	if err != nil {
		return 0, err
	}
	header := http.Header{"Accept": {"application/json"}, "Accept-Encoding": {"gzip"}}
	response, err := s.get(ctx, rulesPath+"serviceproxyrules", url.Values{"resourceVersion": {"0"}}, header)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	return io.Copy(io.Discard, response.Body)
}

// watch counts what a watch receives until ctx is done, and passes each event to seen, if given. It
// returns once the API server has accepted the watch.
func (s *stream) watch(ctx context.Context, path, name, version string, encoding encoding, seen func([]byte)) error {
	query := url.Values{"watch": {"1"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {version}}
	if name != "" {
		query.Set("fieldSelector", "metadata.name="+name)
	}
	response, err := s.get(ctx, path, query, http.Header{"Accept": {encoding.accept}})
	if err != nil {
		return err
	}
	go func() {
		defer response.Body.Close()
		reader := bufio.NewReader(counter{response.Body, &s.bytes})
		for {
			event, err := encoding.next(reader, seen != nil)
			if err != nil {
				if ctx.Err() == nil {
					s.failed(fmt.Errorf("watching %s: %w", path, err))
				}
				return
			}
			if seen != nil {
				seen(event)
			}
		}
	}()
	return nil
}

type counter struct {
	io.Reader
	n *atomic.Int64
}

func (c counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// encoding is how a watch separates its events. Next reads one; whole: it is needed.
type encoding struct {
	accept string
	next   func(r *bufio.Reader, whole bool) ([]byte, error)
}

// asJSON is how agents watch, asProtobuf how kube-proxy does.
func asJSON() encoding {
	return encoding{"application/json", func(r *bufio.Reader, whole bool) ([]byte, error) {
		var event []byte
		for {
			part, err := r.ReadSlice('\n')
			if whole {
				event = append(event, part...)
			}
			if !errors.Is(err, bufio.ErrBufferFull) {
				return event, err
			}
		}
	}}
}

func asProtobuf() encoding {
	return encoding{"application/vnd.kubernetes.protobuf;stream=watch", func(r *bufio.Reader, _ bool) ([]byte, error) {
		var length [4]byte
		if _, err := io.ReadFull(r, length[:]); err != nil {
			return nil, err
		}
		n := binary.BigEndian.Uint32(length[:])
		if n > maxEvent {
			return nil, fmt.Errorf("an event of %d bytes", n)
		}
		event := make([]byte, n)
		_, err := io.ReadFull(r, event)
		return event, err
	}}
}

// awaited notices when addresses arrive.
type awaited struct {
	mu sync.Mutex
	// waiting is for the JSON or protobuf text of an address; guarded by mu.
	waiting map[string]arrival
	arrived []delivery // guarded by mu: since the last take
}

// arrival is an address that was written at a time. Done is closed when it arrives.
type arrival struct {
	written time.Time
	done    chan struct{}
}

// delivery is when an address was written, and how long it took to arrive.
type delivery struct {
	written time.Time
	took    time.Duration
}

func newAwaited() *awaited { return &awaited{waiting: map[string]arrival{}} }

// expect notes that an address is about to be written.
func (a *awaited) expect(address string, now time.Time) <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	done := make(chan struct{})
	a.waiting[address] = arrival{now, done}
	return done
}

// seen looks for the addresses in an event.
func (a *awaited) seen(event []byte) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	for address, arrival := range a.waiting {
		if bytes.Contains(event, []byte(address)) {
			a.arrived = append(a.arrived, delivery{arrival.written, now.Sub(arrival.written)})
			close(arrival.done)
			delete(a.waiting, address)
		}
	}
}

// take returns the addresses that have arrived since the last call, and how many have not.
func (a *awaited) take() (arrived []delivery, missing int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	arrived, a.arrived = a.arrived, nil
	return arrived, len(a.waiting)
}

// drop forgets what has not arrived.
func (a *awaited) drop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.waiting)
}

// fleet is the open watches of agents and of one kube-proxy.
type fleet struct {
	agents    []*stream
	kubeProxy *stream
	// first is what the first agent has received, peer what kube-proxy has.
	first, peer *awaited
	version     atomic.Value // of the newest rules that the first agent has received: a string
	last        atomic.Value // when the first agent has received something: a time.Time
}

// agentConfig is the access of all agents.
func agentConfig(c *cluster.Cluster) (*rest.Config, error) {
	path, err := c.KubeconfigFor("scale", agentUser)
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, err
	}
	admin := c.RESTConfig()
	config.Host, config.Proxy, config.QPS = admin.Host, admin.Proxy, -1
	return config, nil
}

// open opens the watches of the first n nodes and of kube-proxy. The objects must exist.
func open(ctx context.Context, c *cluster.Cluster, n int, failed func(error)) (*fleet, error) {
	config, err := agentConfig(c)
	if err != nil {
		return nil, err
	}
	f := &fleet{first: newAwaited(), peer: newAwaited()}
	f.version.Store("")
	if f.kubeProxy, err = newStream(c.RESTConfig(), failed); err != nil {
		return nil, err
	}
	for _, path := range []string{"/apis/discovery.k8s.io/v1/endpointslices", "/api/v1/services"} {
		version, err := f.kubeProxy.version(ctx, path)
		if err == nil {
			err = f.kubeProxy.watch(ctx, path, "", version, asProtobuf(), f.peer.seen)
		}
		if err != nil {
			return nil, err
		}
	}
	versions := map[string]string{}
	for _, resource := range []string{"serviceproxyrules", "nodeproxyrules", "nodeproxies"} {
		if versions[resource], err = f.kubeProxy.version(ctx, rulesPath+resource); err != nil {
			return nil, err
		}
	}
	for i := range n {
		agent, err := newStream(config, failed)
		if err != nil {
			return nil, err
		}
		var seen func([]byte)
		if i == 0 {
			seen = func(event []byte) {
				if bytes.Contains(event[:min(len(event), 30)], []byte("BOOKMARK")) {
					return
				}
				f.last.Store(time.Now())
				f.first.seen(event)
				if version := versionOf(event); version != "" {
					f.version.Store(version)
				}
			}
		}
		for resource, name := range map[string]string{"serviceproxyrules": "", "nodeproxyrules": nodeName(i), "nodeproxies": "cluster"} {
			watched := seen
			if resource != "serviceproxyrules" {
				watched = nil
			}
			if err := agent.watch(ctx, rulesPath+resource, name, versions[resource], asJSON(), watched); err != nil {
				return nil, err
			}
		}
		f.agents = append(f.agents, agent)
	}
	return f, nil
}

// versionOf is the resource version of the object in an event.
func versionOf(event []byte) string {
	_, rest, found := bytes.Cut(event, []byte(`"resourceVersion":"`))
	version, _, ended := bytes.Cut(rest, []byte(`"`))
	if !found || !ended {
		return ""
	}
	return string(version)
}

// received is the bytes that an agent, on average, and a kube-proxy have received so far.
type received struct{ agent, kubeProxy float64 }

func (f *fleet) received() received {
	total := int64(0)
	for _, agent := range f.agents {
		total += agent.bytes.Load()
	}
	return received{float64(total) / float64(len(f.agents)), float64(f.kubeProxy.bytes.Load())}
}

func (r received) since(before received) received {
	return received{r.agent - before.agent, r.kubeProxy - before.kubeProxy}
}

// quiet waits until the first agent has received nothing but bookmarks for a while, up to a limit.
func (f *fleet) quiet(ctx context.Context, silence, limit time.Duration) {
	until, begin := time.Now().Add(limit), time.Now()
	for {
		since := time.Since(begin)
		if last, _ := f.last.Load().(time.Time); last.After(begin) {
			since = time.Since(last)
		}
		if since >= silence || time.Now().After(until) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(silence - since):
		}
	}
}
