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
	// probeLimit is how many probes in a row may go unanswered until what
	// listens there is taken for something else than a proxy.
	probeLimit = 5
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
	silent := 0 // probes in a row that got no answer
	for {
		mode, active, err := a.options.Probe(ctx)
		if ctx.Err() != nil {
			return false
		}
		if active && mode == "" {
			mode = "unknown"
		}
		free := false
		if err != nil {
			silent++
			free = a.heardNothing(silent)
		} else {
			silent = 0
			free = !active
			a.setConflict(mode, false)
		}
		if free && a.store.ready() {
			return true
		}
		readied := a.readied
		if !free {
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

// heardNothing notes that the last probes, so many in a row, got no answer. It
// reports whether that is enough to tell that there is no proxy: one that is
// short of CPU answers late, and must not find us writing beside it. One that
// has answered before stays a proxy until its port is closed.
func (a *Agent) heardNothing(probes int) bool {
	if mode := a.conflict(); mode != "" || probes < probeLimit {
		a.setConflict(mode, true)
		return false
	}
	if probes == probeLimit {
		a.log.Info("Something accepts connections where kube-proxy would answer, but never answers: taking it for no proxy and going on. If kube-proxy does run on this node, stop it", "askedAt", ProxyModeAddress, "probes", probes)
	}
	a.setConflict("", false)
	return true
}

// setConflict notes the mode of another proxy, empty if none is active, and
// whether it is still waited for an answer.
func (a *Agent) setConflict(mode string, unanswered bool) {
	a.mu.Lock()
	former, formerly := a.otherMode, a.unanswered
	a.otherMode, a.unanswered = mode, unanswered
	a.mu.Unlock()
	if former == mode && formerly == unanswered {
		return
	}
	switch {
	case former == mode:
	case mode != "":
		a.log.Info("Another proxy is active on this node; writing nothing until it stops", "mode", mode, "askedAt", ProxyModeAddress)
	default:
		a.log.Info("The other proxy no longer answers; going on")
	}
	if unanswered && !formerly {
		a.log.Info("Something accepts connections where kube-proxy would answer, but has not answered yet; writing nothing until it does, its port is closed, or, where nobody has answered before, several requests in a row got no answer", "askedAt", ProxyModeAddress, "requests", probeLimit)
	}
	a.metrics.conflict(mode != "")
	a.pokeStatus()
}

func (a *Agent) conflict() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.otherMode
}
