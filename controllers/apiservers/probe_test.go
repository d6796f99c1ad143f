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

	"k8s.io/client-go/rest"
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
