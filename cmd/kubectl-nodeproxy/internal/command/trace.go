package command

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/trace"
)

func newTrace(p *program) *cobra.Command {
	var q trace.Question
	cmd := reporting(&cobra.Command{
		Use:   "trace [--node NODE] --from SOURCE --to DESTINATION",
		Short: "The path that a packet takes on a node",
		Long: `The path that the first packet of a new connection takes on a node, computed from what
the node is to hold: each chain or virtual server that it passes, the share of each
endpoint, whether its source is kept or masqueraded, or where and why it is refused.
Nothing is sent. -o yaml has each rule on the way.

SOURCE is an address, a NODE (one of its processes) or [NAMESPACE/]POD. DESTINATION is
IP:PORT, NODE:NODEPORT, [NAMESPACE/]SERVICE[:PORT], which is its cluster IP, with the
port by number or name, or [NAMESPACE/]POD:PORT. /udp or /sctp follows where it is not
TCP; a port that a Service has for one protocol alone is of that. Of what has the same
name a node comes first, then a Service; node/, svc/ or pod/ before it says which.`,
		Example: `  # Which endpoints does a pod get, and by which rules?
  kubectl nodeproxy trace --from shop/cart-5d9c7 --to shop/web:http

  # What becomes of a client outside of the cluster?
  kubectl nodeproxy trace --node node-1 --from 203.0.113.9 --to node-1:30080

  # Every rule on the way of a DNS query of a node
  kubectl nodeproxy trace --from node-1 --to 10.96.0.10:53/udp -o yaml`,
		Args:              arguments(0, 0, "no argument but flags"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}, func(cmd *cobra.Command, _ []string) (output.Report, bool, error) {
		report, err := p.trace(cmd, q)
		return report, false, err
	})
	cmd.Flags().StringVar(&q.Node, "node", "", "the node on which the packet is looked at (default: the node of the pod, or the node, given by --from)")
	cmd.Flags().StringVar(&q.From, "from", "", "who sends it: an address, a node or a pod")
	cmd.Flags().StringVar(&q.To, "to", "", "where it goes: IP:PORT, NODE:NODEPORT, a Service or a pod, and a protocol")
	completeFlag(cmd, "node", p.completeNodes(1))
	completeFlag(cmd, "from", p.completeNodes(1))
	completeFlag(cmd, "to", p.completeServices)
	return cmd
}

func (p *program) trace(cmd *cobra.Command, q trace.Question) (output.Report, error) {
	if q.From == "" || q.To == "" {
		return nil, errors.New("say from where to where the packet goes: kubectl nodeproxy trace --node NODE --from IP --to IP:PORT")
	}
	var err error
	if q.Namespace, _, err = p.kube.ToRawKubeConfigLoader().Namespace(); err != nil {
		return nil, cluster.Configuration(err)
	}
	optional := []cluster.Kind{cluster.EndpointSlices, cluster.NodeProxies}
	if _, err := netip.ParseAddr(strings.Trim(q.From, "[]")); err != nil {
		optional = append(optional, cluster.Pods)
	}
	q.Plugin = p.Version
	r, err := p.reader()
	if err != nil {
		return nil, err
	}
	objects, err := p.readBy(cmd, r, []cluster.Kind{cluster.NodeProxyRules, cluster.ServiceProxyRules}, optional)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(optional, cluster.Pods) && trace.MayBePod(objects, q) {
		more, err := r.Read(cmd.Context(), nil, []cluster.Kind{cluster.Pods})
		if err != nil {
			return nil, err
		}
		objects.Pods, objects.Unread = more.Pods, append(objects.Unread, more.Unread...)
	}
	report, err := trace.Of(cmd.Context(), objects, q)
	if unrendered, is := errors.AsType[*trace.UnrenderedError](err); is {
		if why := r.Unrendered(cmd.Context(), unrendered.Service, unrendered.Node); why != nil {
			return nil, fmt.Errorf("--to: %w", why)
		}
	}
	if err != nil {
		return nil, err
	}
	return report, nil
}
