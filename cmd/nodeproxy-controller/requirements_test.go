package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// The real program, installed in the wrong order: it reports what is missing, does nothing,
// and starts when the requirements are met, without a restart.
func TestStartsWhenAllIsThere(t *testing.T) {
	r := newRig(t)
	config, err := clientcmd.BuildConfigFromFlags("", r.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	crds := newCRDs(t, config)
	dead := "https://" + freeAddress(t)
	addresses, probes := filepath.Join(t.TempDir(), "endpoints"), freeAddress(t)
	writeFile(t, addresses, dead)

	start := time.Now()
	c := r.start("--api-servers-file", addresses, "--health-probe-bind-address", probes)
	for _, text := range []string{"No API server answers", dead + ": dial tcp", "connection refused", "whatToDo", addresses} {
		r.until("the address is wrong: "+text, 30*time.Second-time.Since(start), func(context.Context) error { return logged(c, text) })
	}
	t.Logf("a wrong address is printed after %s", time.Since(start).Round(100*time.Millisecond))
	r.unready(probes, dead+": dial tcp")

	missing := crds.get("serviceproxyrules.nodeproxy.io")
	crds.remove(missing)
	writeFile(t, addresses, config.Host)
	r.until("a CRD is missing", 20*time.Second, func(context.Context) error {
		return logged(c, "CRDs are missing: serviceproxyrules.nodeproxy.io")
	})
	r.unready(probes, "CRDs are missing: serviceproxyrules.nodeproxy.io: install those of this release")

	crds.annotate("nodeproxies.nodeproxy.io", strconv.Itoa(v1alpha1.SchemaRevision-1))
	missing.ObjectMeta = metav1.ObjectMeta{Name: missing.Name}
	crds.create(missing)
	old := fmt.Sprintf("needs nodeproxy.io/schema-revision %d: nodeproxies.nodeproxy.io (it has %d), serviceproxyrules.nodeproxy.io (it has none)",
		v1alpha1.SchemaRevision, v1alpha1.SchemaRevision-1)
	r.until("CRDs are too old", 20*time.Second, func(context.Context) error { return logged(c, old) })
	r.unready(probes, old)
	if holder, _ := r.lease(); holder != "" {
		t.Errorf("it takes part in the election without what it needs, as %s", holder)
	}

	crds.annotate("nodeproxies.nodeproxy.io", strconv.Itoa(v1alpha1.SchemaRevision))
	crds.annotate("serviceproxyrules.nodeproxy.io", strconv.Itoa(v1alpha1.SchemaRevision+1)) // newer ones will do
	// A watch that began before the CRD was served is tried again after up to 30 s.
	r.works("all is there", time.Minute)
	r.until("ready", 10*time.Second, func(ctx context.Context) error {
		code, body, err := get(ctx, probes, "/readyz")
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("/readyz answers %d: %s", code, body)
		}
		return err
	})
	r.running(c)
}

// unready waits until /readyz explains why it fails, and fails if the process does
// not count as alive.
func (r *rig) unready(probes, why string) {
	r.Helper()
	r.until("/readyz: "+why, 10*time.Second, func(ctx context.Context) error {
		code, body, err := get(ctx, probes, "/readyz")
		if err == nil && (code != http.StatusServiceUnavailable || !strings.Contains(body, why)) {
			err = fmt.Errorf("/readyz answers %d: %s", code, body)
		}
		return err
	})
	if code, body, err := get(r.Context(), probes, "/healthz"); err != nil || code != http.StatusOK {
		r.Errorf("/healthz answers %d, %s, %v: the kubelet would start it again", code, body, err)
	}
}

func get(ctx context.Context, address, path string) (code int, body string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = response.Body.Close() }() // only read from
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

func writeFile(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// crds changes CRDs in an API server.
type crds struct {
	*testing.T
	client client.Client
}

func newCRDs(t *testing.T, config *rest.Config) crds {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return crds{T: t, client: c}
}

func (c crds) get(name string) *apiextensionsv1.CustomResourceDefinition {
	c.Helper()
	out := &apiextensionsv1.CustomResourceDefinition{}
	if err := c.client.Get(c.Context(), client.ObjectKey{Name: name}, out); err != nil {
		c.Fatal(err)
	}
	return out
}

func (c crds) create(crd *apiextensionsv1.CustomResourceDefinition) {
	c.Helper()
	if err := c.client.Create(c.Context(), crd); err != nil {
		c.Fatal(err)
	}
}

// remove deletes a CRD and waits until it is gone.
func (c crds) remove(crd *apiextensionsv1.CustomResourceDefinition) {
	c.Helper()
	if err := c.client.Delete(c.Context(), crd.DeepCopy()); err != nil {
		c.Fatal(err)
	}
	(&rig{T: c.T}).until("no "+crd.Name, 20*time.Second, func(ctx context.Context) error {
		err := c.client.Get(ctx, client.ObjectKeyFromObject(crd), &apiextensionsv1.CustomResourceDefinition{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("it is there still"))
	})
}

// annotate gives a CRD a revision.
func (c crds) annotate(name, revision string) {
	c.Helper()
	crd := c.get(name)
	before := client.MergeFrom(crd.DeepCopy())
	metav1.SetMetaDataAnnotation(&crd.ObjectMeta, v1alpha1.AnnotationSchemaRevision, revision)
	if err := c.client.Patch(c.Context(), crd, before); err != nil {
		c.Fatal(err)
	}
}

func TestRevision(t *testing.T) {
	for text, want := range map[string]bool{
		strconv.Itoa(v1alpha1.SchemaRevision - 1): false, strconv.Itoa(v1alpha1.SchemaRevision): true, strconv.Itoa(v1alpha1.SchemaRevision + 1): true,
		"": false, "new": false,
	} {
		if found, enough := revision(map[string]string{v1alpha1.AnnotationSchemaRevision: text}); enough != want || !strings.Contains(found, text) {
			t.Errorf("%q: %s, enough %t", text, found, enough)
		}
	}
	if found, enough := revision(nil); enough || found != "it has none" {
		t.Errorf("without annotation: %s, %t", found, enough)
	}
}

// What is missing is printed once, again when it is something else, and once a
// minute.
func TestAwait(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	var log, noted []string
	logger := funcr.New(func(_, args string) { log = append(log, args) }, funcr.Options{})
	looks := 0
	check := func(context.Context) error {
		looks++
		switch {
		case looks <= 21: // 0 to 60 s
			return errors.New("first")
		case looks == 22:
			return apierrors.NewNotFound(corev1.Resource("namespaces"), "second")
		default:
			return nil
		}
	}
	done := make(chan bool)
	go func() {
		done <- await(t.Context(), check, func(err error) { noted = append(noted, err.Error()) }, clk, logger)
	}()
	r := &rig{T: t}
	for range 22 {
		r.until("the next look", 10*time.Second, func(context.Context) error {
			if !clk.HasWaiters() {
				return errors.New("no timer")
			}
			return nil
		})
		clk.Step(checkPause)
	}
	if !<-done {
		t.Error("it was not there in the end")
	}
	printed := slices.DeleteFunc(slices.Clone(log), func(line string) bool { return !strings.Contains(line, "does not start yet") })
	if len(printed) != 3 || !strings.Contains(printed[1], "first") || !strings.Contains(printed[2], "second") || len(log) != 4 || len(noted) != 22 {
		t.Errorf("noted %d; log:\n%s", len(noted), strings.Join(log, "\n"))
	}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	if await(stopped, func(context.Context) error { return nil }, func(error) {}, clk, logger) {
		t.Error("it starts although ctx is done")
	}
}
