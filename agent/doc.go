// Package agent is the node's half of nodeproxy: it watches the rendered rules, has the data
// planes program the kernel from them, and reports the actual kernel state. It wires the
// packages below it, and is the only one that knows all of them.
//
// Where to look:
//
//   - agent.go: options, wiring, and what follows an event of the API
//   - sync.go, audit.go, verify.go: the steps of the sync loop; applied.go: what follows a write
//   - mode.go, removal.go: mode selection, and the end of all rules
//   - relinquish.go: what another proxy does not take over
//   - ports.go, report.go: health ports, status and readiness
//   - logs.go, problems.go: the log, and how often it has the problems of Services
//
// The packages:
//
//   - apiclient: the API: client, watches, Lease, errors
//   - checkpoint: the checkpoint's file and format; checkpoint/recovery: when it is written and used
//   - combine: the Services as one node serves them; pure
//   - conntrack: connection tracking: settings, metrics, stale flows
//   - dataplane: contract of the data planes; the destinations of a Service
//   - dataplane/engine: how all of them apply: partial or full, rejected Services
//   - dataplane/modes: lists the modes; runs one, then cleans up the others
//   - dataplane/iptables: mode IPTables, and fixed rules for other modes
//   - dataplane/ipvs: mode IPVS: virtual servers, device, ipsets
//   - dataplane/nftables: mode NFTables: one table for each IP family; dataplane/nft: nf_tables by
//     netlink, nft/unix: its constants; nftables/kubeproxy: the table of kube-proxy
//   - dataplane/nlattr: attributes of netlink messages
//   - dataplane/kernelmodel: what the models of kernels share: iptables/iptablesmodel,
//     ipvs/ipvsmodel, nftables/nftablesmodel
//   - dataplane/dataplanetest: a data plane in memory; dataplanetest/ipvstest: a model of IPVS that fails
//   - desired: the desired state, retained Services and when they end, the ledger of pending changes, what
//     the kernel has
//   - drift: changes by other programs, and when they are repaired
//   - health: ports for load balancers, kubelet and metrics
//   - httpport: HTTP ports on which clients cannot block each other
//   - metrics: the agent's metrics
//   - ownership: whether the agent may write: acquires and loses ownership; probes of ports
//   - ownership/detection: detects another active proxy in the kernel
//   - pause: pauses that a wake-up can end
//   - sockets: which processes listen on TCP ports
//   - status: status and conditions, and when they are written
//   - syncer: when to write and verify
//   - tracer: predicts a packet's path with kernel models
//   - wording: bounds texts for logs and messages
//   - agenttest, apitest: objects for tests; tests with an API server
package agent
