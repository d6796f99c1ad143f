package nodes

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// reported is how soon a wrong address must be reported.
const reported = 30 * time.Second

// TestAgentWithoutAPI gives the agent wrong addresses of API servers, and then
// an API server without its kinds. It reports it, programs nothing, and starts when
// all is right, without being started again. Once there are rules, they stay.
func TestAgentWithoutAPI(t *testing.T) {
	t.Parallel()
	e := start(t)
	right := e.nodeproxy.Cluster.RESTConfig().Host
	host, err := url.Parse(right)
	if err != nil {
		t.Fatal(err)
	}
	closed := "https://" + host.Hostname() + ":1"
	silent := "https://" + host.Hostname() + ":2"
	if _, err := e.nodeproxy.Cluster.ControlPlane().Exec(t.Context(), "iptables-nft", "-w", "-I", "INPUT", "-p", "tcp", "--dport", "2", "-j", "DROP"); err != nil {
		t.Fatal(err)
	}
	addresses := filepath.Join(t.TempDir(), "endpoints")
	list := func(servers ...string) {
		if err := os.WriteFile(addresses, []byte(strings.Join(servers, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	wrong := []string{"no API server answers", closed + ": dial tcp", "connection refused", silent + ": dial tcp", "i/o timeout"}

	list(closed, silent)
	before := e.rules()
	began := time.Now()
	agent := e.startAgent("--api-servers-file", addresses)
	e.reports(agent, 0, append(wrong, "whatToDo", addresses)...)
	e.unready(wrong...)
	e.soon(began)

	const kind = "nodeproxyrules.nodeproxy.io"
	if _, err := e.nodeproxy.Cluster.Kubectl(t.Context(), "delete", "crd", kind); err != nil {
		t.Fatal(err)
	}
	list(right)
	e.reports(agent, 0, "the kinds of nodeproxy.io are not installed in this cluster: apply the install.yaml of this release")
	e.unready("this node's NodeProxyRules", "could not find the requested resource")
	if diff := cmp.Diff(before, e.rules()); diff != "" {
		t.Errorf("rules were written (-before +after):\n%s", diff)
	}
	if _, err := e.nodeproxy.Cluster.Kubectl(t.Context(), "apply", "-f", filepath.Join(e.nodeproxy.Config, "crd", "bases")); err != nil {
		t.Fatal(err)
	}
	e.programmed()
	e.until(e.ready)
	e.until(e.apiServerAnswers)

	if err := agent.Stop(); err != nil { // so that it leaves a checkpoint
		t.Fatal(err)
	}
	before = e.rules()
	list(closed, silent)
	log, err := os.Stat(agent.Log())
	if err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	agent = e.startAgent("--api-servers-file", addresses)
	e.reports(agent, log.Size(), wrong...)
	e.unready(wrong...)
	e.soon(began)
	list(right)
	e.programmed()
	e.until(e.ready)
	if diff := cmp.Diff(before, e.rules()); diff != "" {
		t.Errorf("rules were written (-before +after):\n%s", diff)
	}
}

// soon fails if wrong addresses are reported too late.
func (e *env) soon(began time.Time) {
	e.Helper()
	took := time.Since(began).Round(100 * time.Millisecond)
	e.Logf("wrong addresses are reported after %s", took)
	if took > reported {
		e.Errorf("wrong addresses are reported after %s, want %s", took, reported)
	}
}

// reports waits until the agent has logged some texts. Its log is what comes after
// those of agents before it.
func (e *env) reports(agent *cluster.Process, after int64, texts ...string) {
	e.Helper()
	e.until(func(context.Context) error {
		return lacks(func() (string, error) {
			log, err := os.ReadFile(agent.Log())
			if err != nil {
				return "", err
			}
			return string(log[after:]), nil
		}, texts)
	})
}

// unready waits until the agent's /readyz answers 503, for these reasons.
func (e *env) unready(reasons ...string) {
	e.Helper()
	e.until(func(ctx context.Context) error {
		return lacks(func() (string, error) { return e.readyz(ctx, http.StatusServiceUnavailable) }, reasons)
	})
}

func (e *env) ready(ctx context.Context) error {
	text, err := e.readyz(ctx, http.StatusOK)
	if err == nil && text != "ok" {
		err = fmt.Errorf("/readyz answers %q", text)
	}
	return err
}

// readyz returns what the agent's /readyz reports, which has to be with that status.
func (e *env) readyz(ctx context.Context, status int) (string, error) {
	got, text, err := e.node.Fetch(ctx, "http://127.0.0.1:19256/readyz")
	if err == nil && got != status {
		err = fmt.Errorf("/readyz answers %d, want %d: %s", got, status, text)
	}
	return text, err
}

// lacks returns nil when a text holds all the given ones.
func lacks(read func() (string, error), texts []string) error {
	got, err := read()
	if err != nil {
		return err
	}
	for _, text := range texts {
		if !strings.Contains(got, text) {
			return fmt.Errorf("%q is not in:\n%s", text, got)
		}
	}
	return nil
}
