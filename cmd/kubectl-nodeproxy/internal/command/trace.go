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
		Short: "Predict the path of a packet on a node",
		Long: `Predict the path of the first packet of a new connection on a node, from the desired
rules: the chains or the virtual server, the probability of each endpoint, whether the
source address is preserved or masqueraded, or where and why the packet is rejected. No
packet is sent. -o yaml prints every matching rule.

SOURCE is an address, a NODE (one of its processes) or [NAMESPACE/]POD. DESTINATION is
IP:PORT, NODE:NODEPORT, [NAMESPACE/]SERVICE[:PORT] (its cluster IP, with the port by number
or name) or [NAMESPACE/]POD:PORT. Append /udp or /sctp if it is not TCP, unless the Service
has the port for one protocol only. An ambiguous name is a node, then a Service, then a
pod; the prefix node/, svc/ or pod/ selects one.

The exit code is 0 for any outcome, and 2 for errors.`,
		Example: `  # Which endpoints does a pod reach, and by which rules?
  kubectl nodeproxy trace --from shop/cart-5d9c7 --to shop/web:http

  # What happens to a client outside the cluster?
  kubectl nodeproxy trace --node node-1 --from 203.0.113.9 --to node-1:30080

  # Every rule that a DNS query of a node matches
  kubectl nodeproxy trace --from node-1 --to 10.96.0.10:53/udp -o yaml`,
		Args:              arguments(0, 0, "only flags"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}, func(cmd *cobra.Command, _ []string) (output.Report, bool, error) {
		report, err := p.trace(cmd, q)
		return report, false, err
	})
	cmd.Flags().StringVar(&q.Node, "node", "", "the node on which to trace (default: the node, or the node of the pod, in --from)")
	cmd.Flags().StringVar(&q.From, "from", "", "the sender: an address, a node or a pod")
	cmd.Flags().StringVar(&q.To, "to", "", "the destination: IP:PORT, NODE:NODEPORT, a Service or a pod, and a protocol")
	completeFlag(cmd, "node", p.complete(cluster.NodeProxyRules, 1))
	completeFlag(cmd, "from", p.complete(cluster.NodeProxyRules, 1))
	completeFlag(cmd, "to", p.complete(cluster.ServiceProxyRules, 1))
	return cmd
}

func (p *program) trace(cmd *cobra.Command, q trace.Question) (output.Report, error) {
	if q.From == "" || q.To == "" {
		return nil, errors.New("--from and --to are required: kubectl nodeproxy trace --node NODE --from IP --to IP:PORT")
	}
	var err error
	if q.Namespace, _, err = p.kube.ToRawKubeConfigLoader().Namespace(); err != nil {
		return nil, cluster.Configuration(err)
	}
	optional := []cluster.Kind{cluster.EndpointSlices, cluster.NodeProxies}
	if _, err := netip.ParseAddr(strings.Trim(q.From, "[]")); err != nil {
		optional = append(optional, cluster.Pods)
	}
	r, err := p.reader()
	if err != nil {
		return nil, err
	}
	objects, err := p.read(cmd, r, []cluster.Kind{cluster.NodeProxyRules, cluster.ServiceProxyRules}, optional)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(optional, cluster.Pods) && trace.MayBePod(objects, q) {
		if err := r.Read(cmd.Context(), objects, nil, []cluster.Kind{cluster.Pods}); err != nil {
			return nil, err
		}
	}
	report, err := trace.Of(cmd.Context(), objects, q)
	if unrendered, is := errors.AsType[*trace.UnrenderedError](err); is {
		if why := r.Unrendered(cmd.Context(), unrendered.Service, unrendered.Node); why != nil {
			return nil, fmt.Errorf("--to: %w", why)
		}
	}
	return report, err
}
