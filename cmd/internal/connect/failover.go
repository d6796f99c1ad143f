package connect

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// roundLimit is after what time a request tries no further server, so that the caller gets
// an error in time. The next request continues with the next server.
const roundLimit = 20 * time.Second

// failover sends each request to the server that responded last, and to the next ones until
// a connection is established.
type failover struct {
	next    http.RoundTripper
	servers *servers
	clock   clock.PassiveClock
}

// RoundTrip implements http.RoundTripper. It does not repeat a request that may have
// arrived: only the caller knows whether that is safe, and then reaches the next server.
func (f *failover) RoundTrip(request *http.Request) (*http.Response, error) {
	start := f.clock.Now()
	var last error
	for i, one := range f.servers.order() {
		attempt, ok := again(request, i)
		if !ok {
			break
		}
		response, connected, err := f.ask(attempt, one)
		if err == nil {
			f.servers.answered(one)
			return response, nil
		}
		if errors.Is(request.Context().Err(), context.Canceled) {
			return nil, err // the caller has gone, which is not the server's failure
		}
		last = err
		f.servers.failed(one, err)
		if connected || request.Context().Err() != nil || f.clock.Since(start) >= roundLimit {
			break
		}
	}
	if err := f.servers.complaint(f.clock.Since(start) >= roundLimit); err != nil {
		return nil, err
	}
	return nil, last
}

// ask sends a request to a server. connected: there was a connection, so the request may
// have arrived despite an error.
func (f *failover) ask(request *http.Request, one server) (response *http.Response, connected bool, err error) {
	var got atomic.Bool
	ctx := httptrace.WithClientTrace(request.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { got.Store(true) }})
	sent := request.Clone(ctx)
	sent.URL.Scheme, sent.URL.Host = one.split()
	sent.Host = ""
	response, err = f.next.RoundTrip(sent)
	return response, got.Load(), err
}

// again returns a request for a further try: each but the first needs a new body. ok is
// false if there is none.
func again(request *http.Request, try int) (out *http.Request, ok bool) {
	if try == 0 || request.Body == nil || request.Body == http.NoBody {
		return request, true
	}
	if request.GetBody == nil {
		return nil, false
	}
	body, err := request.GetBody()
	if err != nil {
		return nil, false // the caller retries after the error of the last server
	}
	out = request.Clone(request.Context())
	out.Body = body
	return out, true
}
