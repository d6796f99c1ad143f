package apiservers

import (
	"cmp"
	"context"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/agentdeploy"
	"github.com/nodeproxy-io/nodeproxy/controllers/internal/controllertest"
	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/reports"
)

func TestAPIServerProbe(t *testing.T) {
	asked := make(chan *http.Request, 1)
	hang := make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path { // the answer to give
		case "/hang/version":
			<-hang
		case "/401/version":
			w.WriteHeader(http.StatusUnauthorized)
		case "/302/version":
			http.Redirect(w, r, "https://127.0.0.1:1/", http.StatusFound)
		case "/503/version":
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			asked <- r
		}
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // clients that do not trust it break off
	server.StartTLS()
	defer server.Close()
	defer close(hang)
	trusted := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	for name, tt := range map[string]struct {
		ca, tlsName, path, url string
		want                   string // in the error; empty: none
	}{
		"answers":                 {ca: trusted, tlsName: "example.com"},
		"answers, with a slash":   {ca: trusted, tlsName: "example.com", path: "/"},
		"does not know us":        {ca: trusted, tlsName: "example.com", path: "/401"},
		"not ready":               {ca: trusted, tlsName: "example.com", path: "/503", want: `it answers "503 Service Unavailable"`},
		"something else":          {ca: trusted, tlsName: "example.com", path: "/302", want: `it answers "302 Found"`},
		"no server":               {ca: trusted, tlsName: "example.com", url: "https://127.0.0.1:1", want: "dial tcp 127.0.0.1:1: connect: connection refused"},
		"hangs":                   {ca: trusted, tlsName: "example.com", path: "/hang", want: "no answer within"},
		"another cluster":         {tlsName: "example.com", want: "certificate signed by unknown authority"},
		"another name":            {ca: trusted, tlsName: "kubernetes.default.svc", want: "not kubernetes.default.svc"},
		"the name of the address": {ca: trusted}, // 127.0.0.1, which the certificate has, too
	} {
		t.Run(name, func(t *testing.T) {
			own := &rest.Config{
				Host: server.URL, BearerToken: "secret",
				TLSClientConfig: rest.TLSClientConfig{CAData: []byte(tt.ca), ServerName: tt.tlsName},
			}
			probe, err := NewProbe(own)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if tt.path == "/hang" {
				ctx, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
				defer cancel()
			}
			err = probe(ctx, cmp.Or(tt.url, server.URL+tt.path))
			switch {
			case tt.want == "" && err != nil, tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want %q in it", err, tt.want)
			case err != nil && strings.Contains(err.Error(), "/version"):
				t.Errorf("the error repeats the URL: %v", err)
			}
			select {
			case r := <-asked:
				if r.Header.Get("Authorization") != "" || r.URL.Path != "/version" {
					t.Errorf("asked for %s with %v", r.URL, r.Header)
				}
			default:
			}
		})
	}
}

// TestAmongDecoys: EndpointSlices that others add to default/kubernetes do not hide that of the API
// servers.
func TestAmongDecoys(t *testing.T) {
	scheme, err := objects.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}})
	if err := objects.AddIndexes(t.Context(), controllertest.Indexing{ClientBuilder: builder}); err != nil {
		t.Fatal(err)
	}
	c := controllertest.AmongDecoys(t, builder.Build())
	r := &Reconciler{Client: c, Metrics: metrics.New(prometheus.NewRegistry()), Findings: reports.NewFindings(func() {}), Namespace: "nodeproxy-system"}
	if _, err := r.Reconcile(t.Context(), ctrl.Request{}); err != nil {
		t.Fatal(err)
	}
	file, err := objects.Find[corev1.ConfigMap](t.Context(), c, client.ObjectKey{Namespace: r.Namespace, Name: agentdeploy.APIServersName})
	if err != nil || file == nil || file.Data[agentdeploy.APIServersKey] != "https://192.0.2.10:6443\n" {
		t.Errorf("the ConfigMap is %v (%v)", file, err)
	}
}
