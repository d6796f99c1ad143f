package apitest

import (
	"context"
	"errors"
	"net"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// cable connects an agent to the API server, until it is cut.
type cable struct {
	mu    sync.Mutex
	cut   bool
	conns []net.Conn
	tries int // to connect since it was cut
}

// config is how to reach the API server through the cable.
func (c *cable) config() *rest.Config {
	out := rest.CopyConfig(config)
	out.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.cut {
			c.tries++
			return nil, errors.New("the cable is cut")
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err == nil {
			c.conns = append(c.conns, conn)
		}
		return conn, err
	}
	return out
}

// set cuts the cable, which breaks its connections, or repairs it.
func (c *cable) set(cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut, c.tries = cut, 0
	for _, conn := range c.conns {
		_ = conn.Close() // it may have ended
	}
	c.conns = nil
}

// inVain counts the attempts to connect since the cable was cut.
func (c *cable) inVain() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tries
}

var _ = Describe("an agent that is cut off from the API server", func() {
	It("reads True again once it is back, though nothing has changed for it", func(ctx SpecContext) {
		service(ctx, "cart", "10.96.0.7", "10.244.1.5:8080")
		inventory(ctx, "cart")
		n, link := newNode(), &cable{}
		n.createRules(ctx, nil)
		n.startAt(clock.RealClock{}, link.config())
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("True/Programmed"))
		Eventually(leaseOf(ctx, n)).Should(HaveField("Annotations", HaveKey(v1alpha1.AnnotationAppliedResourceVersion)))
		before := n.rules(ctx).Status

		link.set(true)
		Eventually(n.logged).Should(ContainSubstring("Could not read from the API"))
		writes := n.kernel.Writes()
		By("the controller reporting what it sees: nothing")
		object := n.rules(ctx)
		for i := range object.Status.Conditions {
			if c := &object.Status.Conditions[i]; c.Type == v1alpha1.ConditionProgrammed {
				c.Status, c.Reason, c.Message = metav1.ConditionUnknown, v1alpha1.ReasonAgentNotResponding, "no heartbeat"
			}
		}
		Expect(api.Status().Update(ctx, object)).To(Succeed())
		tries := link.inVain()
		Eventually(link.inVain).Should(BeNumerically(">=", tries+3), "each watch tries again")
		Expect(n.rules(ctx).ResourceVersion).To(Equal(object.ResourceVersion), "the agent has not written the status since")

		link.set(false)
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("True/Programmed"))
		after := n.rules(ctx).Status
		Expect(after.AppliedResourceVersion).To(Equal(before.AppliedResourceVersion))
		Expect(after.ObservedGeneration).To(Equal(before.ObservedGeneration))
		Expect(n.kernel.Writes()).To(Equal(writes), "the kernel needed nothing")
	})
})
