package apitest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// That an agent does not do something means little after some seconds: a busy
// machine may have kept it from working at all. What follows waits until it has
// observed it. There are two steps to that:
//
//  1. It knows of the change: knows, knowsEnd, knowsNone. Each kind has a watch of its
//     own, and nothing orders the events of one watch against those of another, so an
//     effect of a later change of another kind would not show it.
//  2. It has gone over all it knows since: observed, where it can report that, or decides,
//     where it must not write.

// knows waits until the agent has taken in the stored states of objects, as it logs
// after it has. Resource versions are of the whole API server: no two states of
// objects have the same one.
func (n *node) knows(objects ...client.Object) {
	GinkgoHelper()
	for _, o := range objects {
		Eventually(n.logged).Should(ContainSubstring(fmt.Sprintf(`"name"=%q "resourceVersion"=%q`, o.GetName(), o.GetResourceVersion())))
	}
}

// knowsEnd waits until the agent, since it was started, has taken in that an object
// was deleted.
func (n *node) knowsEnd(name string) {
	GinkgoHelper()
	Eventually(n.logged).Should(ContainSubstring(fmt.Sprintf(`"event"="deleted" "name"=%q`, name)))
}

// knowsNone waits until the agent, since it was started, has taken in an empty list.
func (n *node) knowsNone(resource string) {
	GinkgoHelper()
	Eventually(n.logged).Should(ContainSubstring(fmt.Sprintf(`"resource"=%q "objects"=0`, resource)))
}

// observed has the agent compare once more all it knows, and waits until it reports that
// it has. It gives the node another settings revision, which changes no rules, and
// returns the generation of that. An agent that serves reports a generation once it
// has made a pass over everything that has come by then. One that does not serve
// reports it beside the reason, at the earliest five seconds after its report before.
func (n *node) observed(ctx context.Context) (generation int64) {
	GinkgoHelper()
	n.editRules(ctx, func(s *v1alpha1.NodeProxyRulesSpec) {
		revision, err := strconv.ParseUint(s.SettingsRevision, 16, 32)
		Expect(err).NotTo(HaveOccurred())
		s.SettingsRevision = strconv.FormatUint(revision+1, 16)
	})
	generation = n.rules(ctx).Generation
	Eventually(func() int64 { return n.rules(ctx).Status.ObservedGeneration }).Should(Equal(generation))
	return generation
}

// decides waits until an agent that does not write has decided again whether it may.
// Each time it asks for another proxy in between, after it has checked whether there
// is something to write. The first question may therefore belong to a decision on what it
// knew before, the second begins a new one, and by the third that is made. Other
// settings, where the node has any, have it ask at once.
func (n *node) decides(ctx context.Context) {
	GinkgoHelper()
	for range 3 {
		before := n.other.questions()
		own := &v1alpha1.NodeProxyRules{}
		if err := api.Get(ctx, client.ObjectKey{Name: n.name}, own); err == nil {
			n.editRules(ctx, func(s *v1alpha1.NodeProxyRulesSpec) {
				s.Settings.Sync = &v1alpha1.SyncSettings{VerifyIntervalSeconds: new(60 + int32(own.Generation))}
			})
		} else {
			Expect(client.IgnoreNotFound(err)).To(Succeed())
		}
		Eventually(n.other.questions).Should(BeNumerically(">", before))
	}
}

// versions watches the stored NodeProxyRules of the node from now on. The result
// waits for a version that is the last one of interest and returns all of them: also
// those that were there for a moment, which a reader that polls may miss.
func (n *node) versions(ctx context.Context) (until func(last func(*v1alpha1.NodeProxyRules) bool) []*v1alpha1.NodeProxyRules) {
	GinkgoHelper()
	w, err := api.Watch(ctx, &v1alpha1.NodeProxyRulesList{}, client.MatchingFields{"metadata.name": n.name},
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: n.rules(ctx).ResourceVersion}})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(w.Stop)
	return func(last func(*v1alpha1.NodeProxyRules) bool) []*v1alpha1.NodeProxyRules {
		GinkgoHelper()
		var all []*v1alpha1.NodeProxyRules
		Eventually(func(g Gomega) {
			for {
				select {
				case event, open := <-w.ResultChan():
					object, ok := event.Object.(*v1alpha1.NodeProxyRules)
					if !open || !ok {
						StopTrying(fmt.Sprintf("the watch has ended: %v", event)).Now()
					}
					all = append(all, object)
					if last(object) {
						return
					}
				default:
					g.Expect(all).To(ContainElement(Satisfy(last)))
				}
			}
		}).Should(Succeed())
		return all
	}
}

// reports is whether a version has the report on a generation; for versions.
func reports(generation int64) func(*v1alpha1.NodeProxyRules) bool {
	return func(o *v1alpha1.NodeProxyRules) bool { return o.Status.ObservedGeneration == generation }
}

// metric reads one without labels, or with those in name, from the agent; for
// Eventually.
func (n *node) metric(ctx context.Context, name string) func() (float64, error) {
	return func() (float64, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.probes+"/metrics", http.NoBody)
		if err != nil {
			return 0, err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return 0, err
		}
		defer func() { _ = response.Body.Close() }() // only read from
		text, err := io.ReadAll(response.Body)
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(string(text)) {
			if value, found := strings.CutPrefix(line, name+" "); found {
				return strconv.ParseFloat(strings.TrimSpace(value), 64)
			}
		}
		return 0, fmt.Errorf("there is no metric %s", name)
	}
}

// freeAddress is an address that no process listens on.
func freeAddress() string {
	GinkgoHelper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	defer func() { Expect(listener.Close()).To(Succeed()) }()
	return listener.Addr().String()
}
