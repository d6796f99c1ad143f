// Program scale measures what nodeproxy costs the API server of a large cluster, and how soon
// changes arrive, beside the EndpointSlices that kube-proxy watches in the same cluster:
//
//	go run ./test/scale -bin DIRECTORY [-nodes 5000] [-services 10000] [-only SCENARIO]
//
// etcd, the API server and two controllers are real. Nodes, Services and EndpointSlices are written
// to etcd as Kubernetes' own controllers write them. This process plays the agents: a tenth of them
// as raw watches whose bytes are counted, all of them with the Leases and reports that real agents
// write. kube-proxy's bytes are those of its own watches, in its encoding.
//
// world.go makes the cluster's objects, streams.go counts bytes, agents.go
// writes what agents write, scenarios.go changes things and report.go prints the two tables.
package main
