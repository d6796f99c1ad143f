package main

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

func TestParseOptions(t *testing.T) {
	var out bytes.Buffer
	got, err := parseOptions([]string{"--kubeconfig", "kc", "--api-server=https://192.0.2.1:6443", "--api-server", "https://[2001:db8::1]:6443",
		"--namespace=ns", "--leader-elect=false", "--metrics-bind-address=0", "--health-probe-bind-address=127.0.0.1:1", "-v=2"}, &out)
	if err != nil {
		t.Fatal(err)
	}
	want := options{
		kubeconfig: "kc", apiServers: urls{"https://192.0.2.1:6443", "https://[2001:db8::1]:6443"}, namespace: "ns",
		metricsBindAddress: "0", healthProbeBindAddress: "127.0.0.1:1", verbosity: 2,
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(options{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	defaults, err := parseOptions(nil, &out)
	if err != nil || defaults.namespace != "nodeproxy-system" || !defaults.leaderElect {
		t.Errorf("defaults %+v, %v", defaults, err)
	}
	for _, args := range [][]string{{"extra"}, {"--namespace="}, {"--api-server=192.0.2.1:6443"}, {"--api-server=https://"}, {"--api-server=http://192.0.2.1:8080"}, {"--api-server=https://192.0.2.1:6443/prefix"}, {"--nonsense"}} {
		if _, err := parseOptions(args, &out); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
}

// server is a TLS server whose certificate is for example.com and 127.0.0.1.
func server(t *testing.T) *httptest.Server {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	t.Cleanup(s.Close)
	return s
}

// kubeconfig says that the API server is at host, and trusts a certificate.
func kubeconfig(t *testing.T, host string, trusted *x509.Certificate) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["c"] = &clientcmdapi.Cluster{
		Server: host, CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: trusted.Raw}),
	}
	cfg.Contexts["x"] = &clientcmdapi.Context{Cluster: "c"}
	cfg.CurrentContext = "x"
	if err := clientcmd.WriteToFile(*cfg, file); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestConnect(t *testing.T) {
	up, down := server(t), server(t)
	down.Close()
	o := options{kubeconfig: kubeconfig(t, "https://example.com:6443", up.Certificate()), apiServers: urls{down.URL, up.URL}}
	cfg, err := connect(t.Context(), o, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Host != up.URL || cfg.ServerName != "example.com" || cfg.QPS != -1 {
		t.Errorf("host %s, server name %s, QPS %v", cfg.Host, cfg.ServerName, cfg.QPS)
	}

	o.apiServers = urls{down.URL}
	if _, err := connect(t.Context(), o, logr.Discard()); err == nil || !strings.Contains(err.Error(), down.URL) {
		t.Errorf("nobody answers: %v", err)
	}

	// The certificate is not for the name that the kubeconfig gives.
	o = options{kubeconfig: kubeconfig(t, "https://other.example.org:6443", up.Certificate()), apiServers: urls{up.URL}}
	if cfg, err := connect(t.Context(), o, logr.Discard()); err == nil {
		t.Errorf("a server with a certificate for another name is trusted as %s", cfg.ServerName)
	}

	o = options{kubeconfig: kubeconfig(t, up.URL, up.Certificate())}
	if cfg, err := connect(t.Context(), o, logr.Discard()); err != nil || cfg.Host != up.URL || cfg.ServerName != "" {
		t.Errorf("without --api-server: %+v, %v", cfg, err)
	}
	o = options{kubeconfig: kubeconfig(t, strings.TrimPrefix(up.URL, "https://"), up.Certificate())}
	if _, err := connect(t.Context(), o, logr.Discard()); err != nil {
		t.Errorf("a kubeconfig without the scheme, which client-go takes for http: %v", err)
	}
	o = options{kubeconfig: kubeconfig(t, down.URL, up.Certificate())}
	if _, err := connect(t.Context(), o, logr.Discard()); err == nil || !strings.Contains(err.Error(), down.URL+" does not answer") {
		t.Errorf("without --api-server, nobody answers: %v", err)
	}
	if _, err := connect(t.Context(), options{kubeconfig: "/nonexistent"}, logr.Discard()); err == nil || !strings.Contains(err.Error(), "--kubeconfig /nonexistent") {
		t.Errorf("missing kubeconfig: %v", err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := connect(t.Context(), options{}, logr.Discard()); err == nil || !strings.Contains(err.Error(), "--kubeconfig") {
		t.Errorf("neither pod nor kubeconfig: %v", err)
	}
}
