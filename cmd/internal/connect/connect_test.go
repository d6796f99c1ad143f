package connect

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

// authority is a certificate for the names of an API server, on 127.0.0.1 and
// ::1 as well, which signs itself.
type authority struct {
	certificate tls.Certificate
	pem         []byte
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey("api.example.com", []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, []string{podServerName})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return authority{certificate: pair, pem: certPEM}
}

// apiServer counts what it is asked. It speaks HTTP/2.
type apiServer struct {
	*httptest.Server
	asked atomic.Int32
}

// server starts an API server that answers.
func (a authority) server(t *testing.T) *apiServer {
	return a.serverAt(t, "127.0.0.1:0", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
}

func (a authority) serverAt(t *testing.T, address string, handle http.HandlerFunc) *apiServer {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s := &apiServer{}
	s.Server = &httptest.Server{Listener: listener, EnableHTTP2: true, Config: &http.Server{
		Handler:  http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.asked.Add(1); handle(w, r) }),
		ErrorLog: log.New(io.Discard, "", 0), // of handshakes that are to fail
	}}
	s.TLS = &tls.Config{Certificates: []tls.Certificate{a.certificate}, MinVersion: tls.VersionTLS12}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// dead is an address where nothing listens.
func dead(t *testing.T) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }() // only its number is used
	return "https://" + listener.Addr().String()
}

// lines is what is logged.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) logger() logr.Logger {
	return funcr.New(func(_, args string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.all = append(l.all, args)
	}, funcr.Options{})
}

// with are the lines that hold a text.
func (l *lines) with(text string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.all), func(line string) bool { return !strings.Contains(line, text) })
}

// way is a connection under test, and a client that uses it.
type way struct {
	*Connection
	*testing.T
	log    *lines
	client *http.Client
}

// open makes a connection with the credentials of a pod, of which nothing but
// the way matters here. It begins at the first server of a file.
func (a authority) open(t *testing.T, o Options, clk clock.Clock) *way {
	t.Helper()
	return a.openAs(t, &rest.Config{Host: dead(t), TLSClientConfig: rest.TLSClientConfig{CAData: a.pem}}, o, clk)
}

func (a authority) openAs(t *testing.T, config *rest.Config, o Options, clk clock.Clock) *way {
	t.Helper()
	w := &way{T: t, log: &lines{}}
	var err error
	if w.Connection, err = from(config, o, func(int) int { return 0 }, clk, w.log.logger()); err != nil {
		t.Fatal(err)
	}
	if w.client, err = rest.HTTPClientFor(w.Config()); err != nil {
		t.Fatal(err)
	}
	return w
}

// ask sends one request.
func (w *way) ask() error { return w.send(w.Context(), http.MethodGet, http.NoBody) }

func (w *way) send(ctx context.Context, method string, body io.Reader) error {
	base, _, err := rest.DefaultServerUrlFor(w.Config())
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, base.JoinPath("readyz").String(), body)
	if err != nil {
		return err
	}
	response, err := w.client.Do(request)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, response.Body)
	return errors.Join(err, response.Body.Close())
}

// answered fails unless a server, and no other, was asked n times.
func (w *way) answered(one *apiServer, n int32) {
	w.Helper()
	if got := one.asked.Load(); got != n {
		w.Errorf("%s was asked %d times, want %d; log %q", one.URL, got, n, w.log.with(""))
	}
}

func TestDeadFirstServer(t *testing.T) {
	a := newAuthority(t)
	first, second := dead(t), a.server(t)
	w := a.open(t, Options{APIServers: []string{first, second.URL}}, clock.RealClock{})
	// The body is sent to the second one too, and the caller notices nothing.
	if err := w.send(t.Context(), http.MethodPost, strings.NewReader("body")); err != nil {
		t.Fatal(err)
	}
	w.answered(second, 1)
	if err := w.ask(); err != nil {
		t.Fatal(err)
	}
	if got := w.servers.order()[0]; string(got) != second.URL {
		t.Errorf("%s is asked first after %s has answered", got, second.URL)
	}
	if reported := w.log.with("No API server answers"); len(reported) > 0 {
		t.Errorf("one answers, but it is reported: %q", reported)
	}
}

func TestNextServerWhenTheFirstGoesDown(t *testing.T) {
	a := newAuthority(t)
	first, second := a.server(t), a.server(t)
	w := a.open(t, Options{APIServers: []string{first.URL, second.URL}}, clock.RealClock{})
	if err := w.ask(); err != nil {
		t.Fatal(err)
	}
	w.answered(first, 1)
	first.CloseClientConnections()
	first.Close()
	failures := 0
	for w.ask() != nil {
		if failures++; failures > 1 {
			t.Fatal("the second server is not used")
		}
	}
	if reported := w.log.with("Using another API server"); len(reported) != 1 || !strings.Contains(reported[0], first.URL) || !strings.Contains(reported[0], second.URL) {
		t.Errorf("log %q", w.log.with(""))
	}
}

// A request that has arrived is not sent again: only its caller knows whether
// it may be. The next one goes to the other server.
func TestNoRequestIsSentTwice(t *testing.T) {
	a := newAuthority(t)
	first := a.serverAt(t, "127.0.0.1:0", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	second := a.server(t)
	w := a.open(t, Options{APIServers: []string{first.URL, second.URL}}, clock.RealClock{})
	if err := w.send(t.Context(), http.MethodPost, strings.NewReader("body")); err == nil {
		t.Error("no error of a request that got no answer")
	}
	w.answered(first, 1)
	w.answered(second, 0)
	if err := w.ask(); err != nil {
		t.Error(err)
	}
	w.answered(first, 1)
	w.answered(second, 1)
}

// A caller that gives up proves nothing about the server; one whose time is up does.
func TestWhoDoesNotAnswerInTime(t *testing.T) {
	a := newAuthority(t)
	asked := make(chan struct{}, 1)
	first := a.serverAt(t, "127.0.0.1:0", func(_ http.ResponseWriter, r *http.Request) { asked <- struct{}{}; <-r.Context().Done() })
	second := a.server(t)
	w := a.open(t, Options{APIServers: []string{first.URL, second.URL}}, clock.RealClock{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	if err := w.send(ctx, http.MethodGet, http.NoBody); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if got := w.servers.order()[0]; string(got) != first.URL {
		t.Errorf("a caller that went away makes %s the first", got)
	}
	limited, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	if err := w.send(limited, http.MethodGet, http.NoBody); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("too late: %v", err)
	}
	if err := w.ask(); err != nil {
		t.Error(err)
	}
	w.answered(second, 1)
}

// All are wrong: it is reported at once with each one's error, once a minute, and
// when one is right it is used.
func TestAllWrongThenRight(t *testing.T) {
	a := newAuthority(t)
	clk := clocktesting.NewFakeClock(time.Now())
	other := newAuthority(t).server(t) // its certificate is not trusted
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	file := filepath.Join(t.TempDir(), "endpoints")
	late := dead(t)
	wrong := []string{late, other.URL, strings.Replace(plain.URL, "http:", "https:", 1)}
	write(t, file, strings.Join(wrong, "\n"))
	w := a.open(t, Options{APIServersFile: file}, clk)
	for range 3 {
		err := w.ask()
		if err == nil {
			t.Fatal("a wrong server answers")
		}
		for i, text := range []string{"connection refused", "certificate signed by unknown authority", "not look like a TLS handshake"} {
			if !strings.Contains(err.Error(), wrong[i]+": ") || !strings.Contains(err.Error(), text) {
				t.Errorf("%v: it lacks %s, or that %s", err, wrong[i], text)
			}
		}
	}
	reported := w.log.with("No API server answers")
	if len(reported) != 1 || !strings.Contains(reported[0], file) || !strings.Contains(reported[0], late) {
		t.Errorf("it must be reported once, with the file and each server: %q", reported)
	}
	clk.Step(complaintPause)
	_ = w.ask()
	if reported = w.log.with("No API server answers"); len(reported) != 2 {
		t.Errorf("a minute later it is not reported again: %q", reported)
	}
	right := a.serverAt(t, strings.TrimPrefix(late, "https://"), func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	if err := w.ask(); err != nil {
		t.Error(err)
	}
	w.answered(right, 1)
	if reported := w.log.with("An API server answers again"); len(reported) != 1 {
		t.Errorf("log %q", w.log.with(""))
	}
}

// TLS is checked for the name that goes with the credentials, whatever the
// address.
func TestNameOfTheServer(t *testing.T) {
	a := newAuthority(t)
	up := a.server(t)
	other := strings.TrimPrefix(up.URL, "https://")
	for _, tt := range []struct {
		name string
		host string
		o    Options
		tls  string
		want bool
	}{
		{"kubeconfig", "https://api.example.com:6443", Options{Kubeconfig: "f", APIServers: []string{up.URL}}, "", true},
		{"kubeconfig without scheme", "api.example.com:6443", Options{Kubeconfig: "f", APIServers: []string{up.URL}}, "", true},
		{"kubeconfig with an address", "https://127.0.0.1:6443", Options{Kubeconfig: "f", APIServers: []string{up.URL}}, "", true},
		{"other name, though the address alone would do", "https://other.example.org:6443", Options{Kubeconfig: "f", APIServers: []string{up.URL}}, "", false},
		{"other name, but tls-server-name", "https://other.example.org:6443", Options{Kubeconfig: "f", APIServers: []string{up.URL}}, "api.example.com", true},
		{"wrong tls-server-name", "https://api.example.com:6443", Options{Kubeconfig: "f", APIServers: []string{up.URL}}, "other.example.org", false},
		{"kubeconfig alone", up.URL, Options{Kubeconfig: "f"}, "", true},
		{"kubeconfig alone, without scheme", other, Options{Kubeconfig: "f"}, "", true},
		{"pod", "https://192.0.2.1:443", Options{APIServers: []string{up.URL}}, "", true},
		{"pod alone", up.URL, Options{}, "", true},
	} {
		w := a.openAs(t, &rest.Config{Host: tt.host, TLSClientConfig: rest.TLSClientConfig{CAData: a.pem, ServerName: tt.tls}}, tt.o, clock.RealClock{})
		if err := w.ask(); (err == nil) != tt.want {
			t.Errorf("%s: %v, want trusted %t", tt.name, err, tt.want)
		}
	}
	// In a pod no other name than that of the Service counts.
	stranger, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(stranger, key)
	if err != nil {
		t.Fatal(err)
	}
	of127 := authority{certificate: pair, pem: stranger}
	w := of127.open(t, Options{APIServers: []string{of127.server(t).URL}}, clock.RealClock{})
	if err := w.ask(); err == nil || !strings.Contains(err.Error(), podServerName) {
		t.Errorf("a certificate for 127.0.0.1 alone, in a pod: %v", err)
	}
}

func TestIPv6(t *testing.T) {
	a := newAuthority(t)
	up := a.serverAt(t, "[::1]:0", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	w := a.open(t, Options{APIServers: []string{up.URL}}, clock.RealClock{})
	if err := w.ask(); err != nil {
		t.Error(err)
	}
	w.answered(up, 1)
}

func TestServers(t *testing.T) {
	for text, want := range map[string]string{
		"https://192.0.2.10:6443":         "https://192.0.2.10:6443",
		"https://192.0.2.10:6443/":        "https://192.0.2.10:6443",
		"https://[2001:db8::1]":           "https://[2001:db8::1]:443",
		"https://[2001:db8::1]:6443":      "https://[2001:db8::1]:6443",
		"https://api.example":             "https://api.example:443",
		"192.0.2.10:6443":                 "",
		"http://192.0.2.10:6443":          "",
		"https://":                        "",
		"https://:6443":                   "",
		"https://192.0.2.10:6443/path":    "",
		"https://user@192.0.2.10:6443":    "",
		"https://192.0.2.10:6443?query=1": "",
		"https://[::1":                    "",
		"https://192.0.2.10:port":         "",
	} {
		got, err := parseServer(text)
		if string(got) != want || (err == nil) != (want != "") {
			t.Errorf("%s: %s, %v, want %q", text, got, err, want)
		}
	}
}

func TestFlags(t *testing.T) {
	var o Options
	flags := flag.NewFlagSet("test", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	o.AddFlags(flags)
	if err := flags.Parse([]string{"--kubeconfig", "k", "--api-server=https://192.0.2.10:6443", "--api-server", "https://[2001:db8::1]", "--api-servers-file=f"}); err != nil {
		t.Fatal(err)
	}
	if o.Kubeconfig != "k" || !slices.Equal(o.APIServers, []string{"https://192.0.2.10:6443", "https://[2001:db8::1]"}) || o.APIServersFile != "f" {
		t.Errorf("options %+v", o)
	}
	if err := flags.Parse([]string{"--api-server=192.0.2.10:6443"}); err == nil || !strings.Contains(err.Error(), "https://192.0.2.10:6443") {
		t.Errorf("no URL: got %v, want an example", err)
	}
}

// The environment variable has the same meaning as the flag, for users who cannot change
// the command line, and the flag wins.
func TestVariable(t *testing.T) {
	const both = "https://192.0.2.10:6443 https://[2001:db8::1]"
	for _, c := range []struct {
		name, variable string
		flag           []string
		want           []string
		reports        string
	}{
		{name: "empty"},
		{name: "spaces", variable: both, want: []string{"https://192.0.2.10:6443", "https://[2001:db8::1]"}},
		{name: "commas", variable: ",https://192.0.2.10:6443,\n https://[2001:db8::1] ", want: []string{"https://192.0.2.10:6443", "https://[2001:db8::1]"}},
		{name: "flag", variable: both, flag: []string{"https://192.0.2.11:6443"}, want: []string{"https://192.0.2.11:6443"}},
		{name: "unused nonsense", variable: "nonsense", flag: []string{"https://192.0.2.11:6443"}, want: []string{"https://192.0.2.11:6443"}},
		{name: "no URL", variable: both + ";192.0.2.10:6443", reports: `NODEPROXY_API_SERVERS contains "https://[2001:db8::1];192.0.2.10:6443": it must be a URL such as https://192.0.2.10:6443`},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := Options{APIServers: c.flag}
			err := o.complete(c.variable)
			if c.reports != "" {
				if err == nil || !strings.Contains(err.Error(), c.reports) {
					t.Errorf("got %v, want %q", err, c.reports)
				}
				return
			}
			if err != nil || !slices.Equal(o.APIServers, c.want) {
				t.Errorf("got %q, %v, want %q", o.APIServers, err, c.want)
			}
			if reported := strings.Contains(sources(o), APIServersVariable); c.want != nil && reported != (c.flag == nil) {
				t.Errorf("the remedy is %q", sources(o))
			}
		})
	}
}

// A connection uses the addresses of the variable.
func TestVariableOfTheProcess(t *testing.T) {
	a := newAuthority(t)
	up := a.server(t)
	file := a.kubeconfig(t, dead(t))
	t.Setenv(APIServersVariable, up.URL)
	asks(t, file)
	t.Setenv(APIServersVariable, "192.0.2.10")
	if _, err := New(Options{Kubeconfig: file}, clock.RealClock{}, logr.Discard()); err == nil || !strings.Contains(err.Error(), APIServersVariable) {
		t.Errorf("got %v", err)
	}
}

func TestCredentials(t *testing.T) {
	a := newAuthority(t)
	up := a.server(t)
	file := a.kubeconfig(t, up.URL)
	asks(t, file)
	if _, err := New(Options{Kubeconfig: "/nonexistent"}, clock.RealClock{}, logr.Discard()); err == nil || !strings.Contains(err.Error(), "--kubeconfig /nonexistent") {
		t.Errorf("missing kubeconfig: %v", err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := New(Options{}, clock.RealClock{}, logr.Discard()); err == nil || !strings.Contains(err.Error(), "--kubeconfig") {
		t.Errorf("neither pod nor kubeconfig: %v", err)
	}
}

// kubeconfig writes one of an API server.
func (a *authority) kubeconfig(t *testing.T, server string) string {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: a.pem}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c"}
	config.CurrentContext = "x"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// asks asks the API server by a connection of a kubeconfig, once.
func asks(t *testing.T, kubeconfig string) {
	t.Helper()
	c, err := New(Options{Kubeconfig: kubeconfig}, clock.RealClock{}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	if err := (&way{T: t, Connection: c, client: client}).ask(); err != nil {
		t.Error(err)
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
