// Command bench compares nodeproxy with kube-proxy in one run: the same objects and API
// server, each proxy alone on its own node, one after the other. `make bench` builds what
// it needs and runs it. With -mode IPVS both run in that mode; if this machine's kernel
// has no IPVS, it runs itself in User-mode Linux. With -mode NFTables, nft must be installed, which
// kube-proxy runs. With -mode Userspace, it compares what connections cost, with the last kube-proxy
// that has this mode, and with nodeproxy in mode NFTables.
//
//   - main.go, options.go: flags, and the run in User-mode Linux; run.go: one number of Services
//   - world.go: the objects, written to the API server or etcd; network.go: client and endpoints
//   - proxy.go: kube-proxy and nodeproxy as they run; machine.go, descriptors.go: what they take
//   - measure.go, connections.go, firstconnection.go: the measurements
//   - userspace.go, load.go: those of mode Userspace
//   - report.go, against.go: the table, and its comparison with checked-in ratios
package main
