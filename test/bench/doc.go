// Command bench compares nodeproxy with kube-proxy in one run: the same objects and API
// server, each proxy alone on its own node, one after the other. `make bench` builds what
// it needs and runs it. With -mode IPVS both run in that mode; if this machine's kernel
// has no IPVS, it runs itself in User-mode Linux. With -mode NFTables, nft must be installed, which
// kube-proxy runs.
//
//   - main.go, options.go: flags, and the run in User-mode Linux; run.go: one number of Services
//   - world.go, etcd.go: the objects, written to the API server or etcd; network.go: client and endpoints
//   - proxy.go: kube-proxy and nodeproxy as they run; usage.go: what a process takes
//   - measure.go, connections.go, firstconnection.go: the measurements
//   - report.go, against.go: the table, and its comparison with checked-in ratios
package main
