// Command demo shows nodeproxy at work: it starts a cluster of three nodes on this
// machine, runs the controller and one agent per node as processes, and checks step by
// step that real connections reach the right endpoints. `make demo` builds what it needs
// and runs it. With -mode IPVS the nodes use that mode; if the kernel has no IPVS, the
// demo runs itself in User-mode Linux.
//
//   - main.go, prepare.go: flags and requirements; demo.go: the order of the steps; end.go, inventory.go: what is left
//   - services.go, changes.go, others.go, policies.go, tracking.go: the steps
//   - traffic.go, rules.go, objects.go: what connections, kernel and API server show; report.go: how it is printed
//   - ipvs.go, nftables.go, userspace.go: what only these modes have
package main
