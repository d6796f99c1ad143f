package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

const (
	// ProxyModeAddress is where kube-proxy and we say which mode runs.
	ProxyModeAddress = "127.0.0.1:10249"
	// probePause is how often another proxy is looked for before our first
	// write.
	probePause = time.Second
	// probeTimeout is how long another proxy may take to answer.
	probeTimeout = 2 * time.Second
)

// ProbeFunc asks whether another proxy is active on this node, and in what
// mode. An error means that this cannot be told.
type ProbeFunc func(ctx context.Context) (mode string, active bool, err error)

// ProbeProxyMode returns a ProbeFunc that asks the metrics port of kube-proxy
// at address. What answers 200 is a proxy; nobody listening is none.
func ProbeProxyMode(address string) ProbeFunc {
	client := &http.Client{
		Timeout:   probeTimeout,
		Transport: &http.Transport{Proxy: nil, DisableKeepAlives: true},
	}
	return func(ctx context.Context) (string, bool, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/proxyMode", nil)
		if err != nil {
			return "", false, fmt.Errorf("asking for another proxy: %w", err)
		}
		response, err := client.Do(request)
		if err != nil {
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				return "", false, fmt.Errorf("asking for another proxy: %w", err)
			}
			return "", false, nil // nobody there, or nobody that speaks HTTP
		}
		defer func() { _ = response.Body.Close() }() // only read from
		if response.StatusCode != http.StatusOK {
			return "", false, nil
		}
		mode, err := io.ReadAll(io.LimitReader(response.Body, 64))
		if err != nil {
			return "", true, nil // it answered, and that is what matters
		}
		return strings.TrimSpace(string(mode)), true, nil
	}
}

// awaitTurn returns true once there is a complete set to apply and no other
// proxy is active, false when ctx is done. Until then nothing is written and
// none of the proxy's ports is open.
func (a *Agent) awaitTurn(ctx context.Context) bool {
	for {
		mode, active, err := a.options.Probe(ctx)
		switch {
		case ctx.Err() != nil:
			return false
		case err != nil:
			// Whoever was there a moment ago may only be slow.
			active = a.conflict() != ""
			mode = a.conflict()
		case active && mode == "":
			mode = "unknown"
		}
		if !active {
			mode = ""
		}
		a.setConflict(mode)
		if !active && a.store.ready() {
			return true
		}
		readied := a.readied
		if active {
			readied = nil // no hurry: the next look is in a second
		}
		timer := a.options.Clock.NewTimer(probePause)
		select {
		case <-ctx.Done():
		case <-readied:
		case <-timer.C():
		}
		timer.Stop()
	}
}

// setConflict notes the mode of another proxy; empty: none is active.
func (a *Agent) setConflict(mode string) {
	a.mu.Lock()
	former := a.otherMode
	a.otherMode = mode
	a.mu.Unlock()
	if former == mode {
		return
	}
	if mode != "" {
		a.log.Info("Another proxy is active on this node; writing nothing until it stops", "mode", mode, "askedAt", ProxyModeAddress)
	} else {
		a.log.Info("The other proxy no longer answers; going on")
	}
	a.metrics.conflict(mode != "")
	a.pokeStatus()
}

func (a *Agent) conflict() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.otherMode
}
