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

// Probe checks whether an API server of this cluster answers.
type Probe interface {
	// Probe returns nil if one answers at a URL such as https://192.0.2.10:6443.
	Probe(ctx context.Context, url string) error
}

// VersionProbe requests the version anonymously: it shows no credentials to whatever is at an
// address that users have specified.
type VersionProbe struct {
	config *rest.Config
}

// NewProbe uses the certificate authority, and the name in the certificates, of the controller's
// own configuration.
func NewProbe(own *rest.Config) (*VersionProbe, error) {
	config := rest.AnonymousClientConfig(own)
	if config.ServerName == "" {
		server, _, err := rest.DefaultServerUrlFor(own)
		if err != nil {
			return nil, fmt.Errorf("parse the API server's address %q: %w", own.Host, err)
		}
		config.ServerName = server.Hostname()
	}
	return &VersionProbe{config: config}, nil
}

// Probe implements Probe.
func (p *VersionProbe) Probe(ctx context.Context, server string) error {
	// Read each time, because the file with the authority may change.
	tls, err := rest.TLSConfigFor(p.config)
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
	default:
		return fmt.Errorf("it answers %q, as no API server that works does", response.Status)
	}
}
