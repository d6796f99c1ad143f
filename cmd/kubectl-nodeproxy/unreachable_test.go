package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestUnreachable: errors if no API server is reachable.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	kubeconfig := "--kubeconfig=" + writeKubeconfig(t, "http://127.0.0.1:1")
	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"nothing listens":  {[]string{"status", "--kubeconfig=", "--server=http://127.0.0.1:1"}, "error: the API server http://127.0.0.1:1 cannot be reached: connection refused; is it the right one? (kubectl config current-context, or --context)\n"},
		"no kubeconfig":    {[]string{"status", "--kubeconfig=/does/not/exist"}, "error: the kubeconfig cannot be used: stat /does/not/exist: no such file or directory\n"},
		"no such context":  {[]string{"status", kubeconfig, "--context=other"}, "error: the kubeconfig cannot be used: context \"other\" does not exist\n"},
		"no such duration": {[]string{"status", kubeconfig, "--request-timeout=soon"}, "error: the kubeconfig cannot be used: Invalid timeout value. Timeout must be a single integer in seconds, or an integer followed by a corresponding time unit (e.g. 1s | 2m | 3h)\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, errs, status := execute(t, atNoTime, tt.args...)
			if out != "" || errs != tt.want || status != 2 {
				t.Errorf("exit code %d, stdout %q, stderr\n%q, want\n%q", status, out, errs, tt.want)
			}
		})
	}
}

// TestNoAnswer: errors for a silent server, and for unusable responses.
func TestNoAnswer(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	for name, tt := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"silent": {func(http.ResponseWriter, *http.Request) { <-over },
			"error: the API server SERVER did not respond within 200ms when listing nodeproxies; increase --request-timeout\n"},
		"unknown user": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) },
			"error: the API server SERVER does not accept the credentials of this kubeconfig: they are missing, wrong or expired\n"},
		"broken": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
			"error: the API server SERVER does not return nodeproxies: an error on the server (\"\") has prevented the request from succeeding (get nodeproxies.nodeproxy.io)\n"},
		"no API server": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>hello</html>")) },
			"error: the response of SERVER for nodeproxies cannot be decoded: is it an API server? (kubectl config current-context, or --context)\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(tt.answer)
			t.Cleanup(server.CloseClientConnections)
			out, errs, status := execute(t, atNoTime, "status", "--kubeconfig="+writeKubeconfig(t, server.URL), "--request-timeout=200ms")
			if want := strings.ReplaceAll(tt.want, "SERVER", server.URL); out != "" || errs != want || status != 2 {
				t.Errorf("exit code %d, stdout %q, stderr\n%q, want\n%q", status, out, errs, want)
			}
		})
	}
	t.Cleanup(func() { close(over) })
}
