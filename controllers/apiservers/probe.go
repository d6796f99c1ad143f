package apiservers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"k8s.io/client-go/rest"
)

// probeTimeout limits how long an API server takes to answer.
const probeTimeout = 5 * time.Second

// Probe returns nil if an API server of this cluster answers at a URL such as https://192.0.2.10:6443.
type Probe func(ctx context.Context, url string) error

// NewProbe returns a probe with the certificate authority, and the name in the certificates, of the
// controller's own configuration. It requests the version anonymously, so that no other server at an
// address that users have specified gets credentials.
func NewProbe(own *rest.Config) (Probe, error) {
	config := rest.AnonymousClientConfig(own)
	if config.ServerName == "" {
		server, _, err := rest.DefaultServerUrlFor(own)
		if err != nil {
			return nil, fmt.Errorf("parse the API server's address %q: %w", own.Host, err)
		}
		config.ServerName = server.Hostname()
	}
	return func(ctx context.Context, server string) error { return requestVersion(ctx, config, server) }, nil
}

func requestVersion(ctx context.Context, config *rest.Config, server string) error {
	// Read each time, because the file with the authority may change.
	tls, err := rest.TLSConfigFor(config)
	if err != nil {
		return fmt.Errorf("set up TLS: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	address, err := url.Parse(server)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.JoinPath("version").String(), http.NoBody)
	if err != nil {
		return err
	}
	direct := &http.Client{
		Transport: &http.Transport{
			TLSClientConfig: tls, DisableKeepAlives: true,
			DialContext: (&net.Dialer{Timeout: probeTimeout}).DialContext,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := direct.Do(request)
	if err != nil {
		if where, ok := errors.AsType[*url.Error](err); ok { // the URL is known already
			err = where.Err
		}
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("no answer within %s", probeTimeout)
		}
		return err
	}
	defer func() { _ = response.Body.Close() }() // only its status matters
	switch response.StatusCode {
	case http.StatusOK, http.StatusUnauthorized, http.StatusForbidden: // it need not know us
		return nil
	}
	return fmt.Errorf("it answers %q, which no working API server does", response.Status)
}
