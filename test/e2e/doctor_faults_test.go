package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/cluster/kubelets"
)

// fault is a fault of a cluster.
type fault struct {
	// name is the name of its recorded state.
	name string
	// service is the one to examine; empty: all.
	service string
	// finding is its reason in doctor's report, and where the Service, node or policy.
	finding, where string
	// under is the finding that it follows from, if any.
	under         string
	plant, repair func(r *run)
}

// object is a fault that consists of objects.
func object(name, service, finding, where, text string) *fault {
	path := func(r *run) string { return filepath.Join(r.temp, "fault-"+name+".yaml") }
	return &fault{
		name: name, service: service, finding: finding, where: where,
		plant: func(r *run) {
			r.must(os.WriteFile(path(r), []byte(text), 0o600))
			r.kubectl("apply", "-f", path(r))
		},
		repair: func(r *run) { r.kubectl("delete", "-f", path(r)) },
	}
}

// service is a fault of a Service with that name and spec.
func service(name, finding, where, spec string) *fault {
	return object(name, "", finding, where, "apiVersion: v1\nkind: Service\nmetadata: {name: "+name+", namespace: shop}\nspec:\n"+spec)
}

// by plants and fixes a fault with one kubectl command each.
func by(name, finding, where, plant, repair string) *fault {
	return &fault{
		name: name, finding: finding, where: where,
		plant:  func(r *run) { r.kubectl(strings.Fields(plant)...) },
		repair: func(r *run) { r.kubectl(strings.Fields(repair)...) },
	}
}

// objectFaults are independent of each other.
func objectFaults() []*fault {
	otherProxy := object("other-proxy", "shop/other-proxy", "NotEligible", "shop/other-proxy", `
apiVersion: v1
kind: Service
metadata: {name: other-proxy, namespace: shop, labels: {service.kubernetes.io/service-proxy-name: other}}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
`)
	return []*fault{
		by("dns-without-pods", "NoPodMatches", "kube-system/kube-dns",
			"scale deployment -n kube-system coredns --replicas=0", "scale deployment -n kube-system coredns --replicas=2"),
		by("source-ranges-of-one-family", "SourceRanges", "shop/web",
			`patch service -n shop web --type=merge -p {"spec":{"loadBalancerSourceRanges":["192.0.2.0/24"]}}`,
			`patch service -n shop web --type=merge -p {"spec":{"loadBalancerSourceRanges":null}}`),
		otherProxy,
		service("selects-nothing", "NoPodMatches", "shop/selects-nothing", `
  selector: {app: wbe}
  ports: [{port: 80, targetPort: 8080}]
`),
		service("target-port-of-no-pod", "PortWithoutEndpoint", "shop/target-port-of-no-pod", `
  selector: {app: web}
  ports: [{port: 80, targetPort: htpp}]
`),
		service("without-slices", "NoEndpointSlices", "shop/without-slices", `
  ports: [{port: 80}]
`),
		service("local-on-one-node", "LocalWithoutEndpoint", "node-2", `
  internalTrafficPolicy: Local
  selector: {app: cart}
  ports: [{port: 80, targetPort: 8080}]
`),
		service("address-of-a-node", "NodeAddressTaken", "shop/address-of-a-node", `
  externalIPs: ["172.20.0.12"]
  selector: {app: web}
  ports: [{port: 22, targetPort: 8080}]
`),
		service("address-of-another", "AddressTaken", "shop/address-of-another", `
  externalIPs: ["198.51.100.20"]
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
`),
		service("unclaimed-address", "AddressesSkipped", "shop/unclaimed-address", `
  externalIPs: ["10.96.77.77", "198.51.100.21"]
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
`),
		neverReady(), rejectedByTheCluster(),
	}
}

// neverReady are pods that run and are not ready.
func neverReady() *fault {
	return object("pods-never-ready", "", "NoReadyEndpoint", "shop/pods-never-ready", `
apiVersion: v1
kind: Service
metadata: {name: pods-never-ready, namespace: shop}
spec:
  selector: {app: pods-never-ready}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: pods-never-ready, namespace: shop}
spec:
  selector:
    matchLabels: {app: pods-never-ready}
  template:
    metadata:
      labels: {app: pods-never-ready}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: nodeproxy.test/echo:1
        args: [":8080/tcp"]
        readinessProbe:
          tcpSocket: {port: 8081}
          periodSeconds: 1
`)
}

// rejectedByTheCluster is a Service whose rules an admission policy of the cluster denies.
// The policy is created some time before the Service, because the API server does not apply
// it at once.
func rejectedByTheCluster() *fault {
	policy := object("rejected-policy", "", "", "", `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: e2e-rejected}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups: [nodeproxy.io]
      apiVersions: ["*"]
      operations: [CREATE, UPDATE]
      resources: [serviceproxyrules]
  validations:
  - expression: "object.metadata.name != 'shop.rejected'"
    message: these rules are not for this cluster
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: e2e-rejected}
spec:
  policyName: e2e-rejected
  validationActions: [Deny]
`)
	rejected := service("rejected", "ServiceNotRendered", "shop/rejected", `
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
`)
	return &fault{
		name: "service-rejected", finding: rejected.finding, where: rejected.where,
		plant: func(r *run) {
			policy.plant(r)
			r.until(30*time.Second, "the API server applies the policy", func() error {
				_, err := r.cluster.Kubectl(r.ctx, "create", "--dry-run=server", "--as=system:serviceaccount:"+system+":nodeproxy-controller", "-f", rejectedRules(r))
				if err == nil {
					return errors.New("it takes the rules")
				}
				if !strings.Contains(err.Error(), "these rules are not for this cluster") {
					return err
				}
				return nil
			})
			rejected.plant(r)
		},
		repair: func(r *run) { rejected.repair(r); policy.repair(r) },
	}
}

// rejectedRules writes rules that the admission policy denies.
func rejectedRules(r *run) string {
	path := filepath.Join(r.temp, "rejected-rules.yaml")
	r.must(os.WriteFile(path, []byte("apiVersion: nodeproxy.io/v1alpha1\nkind: ServiceProxyRules\nmetadata: {name: shop.rejected}\nspec: {formatVersion: 1}\n"), 0o600))
	return path
}

// rulesModified is another program that deletes rules of node-1 again and again.
func rulesModified() *fault {
	var end context.CancelFunc
	done := make(chan struct{})
	return &fault{
		name: "rules-modified", finding: "Drifted", where: "node-1",
		plant: func(r *run) {
			ctx, cancel := context.WithCancel(r.ctx)
			end = cancel
			r.background.Go(func() {
				defer close(done)
				every := time.NewTicker(2 * time.Second)
				defer every.Stop()
				for {
					for _, iptables := range []string{"iptables-nft", "iptables-legacy"} { // whichever it has
						_, _ = r.cluster.Node(0).Exec(ctx, nil, iptables, "-t", "nat", "-F", "KUBE-SERVICES")
					}
					select {
					case <-ctx.Done():
						return
					case <-every.C:
					}
				}
			})
		},
		repair: func(r *run) {
			end()
			<-done
			// A new agent reports no drift.
			r.kubectl("delete", "pod", "-n", system, r.agentPods()["node-1"].Name)
		},
	}
}

// tableFull is a connection tracking table of node-1 that is nearly full.
func tableFull() *fault {
	return &fault{
		name: "conntrack-nearly-full", finding: "ConntrackPressure", where: "node-1",
		plant: func(r *run) {
			node := r.cluster.Node(0)
			_, err := node.Exec(r.ctx, flows(r, node), "conntrack", "-R", "-")
			r.must(err)
		},
		repair: func(r *run) {
			_, err := r.cluster.Node(0).Exec(r.ctx, nil, "conntrack", "-F")
			r.must(err)
		},
	}
}

// flows fill the table of a node to five sixths, in the format of conntrack.
func flows(r *run, node *kubelets.Node) *strings.Reader {
	out, err := node.Exec(r.ctx, nil, "cat", "/proc/sys/net/netfilter/nf_conntrack_max")
	r.must(err)
	var most int
	_, err = fmt.Sscan(out, &most)
	r.must(err)
	var text strings.Builder
	for i := range most / 6 * 5 {
		from, port := fmt.Sprintf("192.0.2.%d", i/60000+1), i%60000+1
		fmt.Fprintf(&text, "-A -t 600 -s %s -d 198.51.100.1 -g 198.51.100.1 -q %s -p udp --sport %d --dport 9 --reply-port-src 9 --reply-port-dst %d\n", from, from, port, port)
	}
	return strings.NewReader(text.String())
}

// agentStopped removes the agent from node-2.
func agentStopped() *fault {
	return by("agent-stopped", "AgentNotResponding", "node-2",
		`patch nodeproxy cluster --type=merge -p {"spec":{"agent":{"nodeSelector":{"kubernetes.io/hostname":"node-1"}}}}`,
		`patch nodeproxy cluster --type=merge -p {"spec":{"agent":{"nodeSelector":null}}}`)
}

// nodeFaults are of node-1, which cannot have them together.
func nodeFaults() []*fault {
	return []*fault{
		object("audit", "", "AuditWithoutProxy", "node-1", `
apiVersion: nodeproxy.io/v1alpha1
kind: NodeProxyPolicy
metadata: {name: audit}
spec:
  nodeSelector:
    matchLabels: {kubernetes.io/hostname: node-1}
  settings: {enforcement: Audit}
`),
		object("policies-that-do-not-fit", "", "PolicyNotAccepted", "NodeProxyPolicy/seldom", `
apiVersion: nodeproxy.io/v1alpha1
kind: NodeProxyPolicy
metadata: {name: seldom}
spec:
  nodeSelector:
    matchLabels: {kubernetes.io/hostname: node-1}
  settings: {sync: {minIntervalMilliseconds: 30000}}
---
apiVersion: nodeproxy.io/v1alpha1
kind: NodeProxyPolicy
metadata: {name: often}
spec:
  nodeSelector:
    matchLabels: {kubernetes.io/hostname: node-1}
  settings: {sync: {verifyIntervalSeconds: 6}}
`),
		{
			name: "second-proxy", finding: "ConflictingProxy", where: "node-1",
			plant:  func(r *run) { onNode1(r, "ip", "link", "add", "kube-dummy-if", "type", "bridge") },
			repair: func(r *run) { onNode1(r, "ip", "link", "delete", "kube-dummy-if") },
		},
	}
}

func onNode1(r *run, name string, args ...string) {
	r.Helper()
	_, err := r.cluster.Node(0).Exec(r.ctx, nil, name, args...)
	r.must(err)
}

// wholeFaults are faults of the controller and of NodeProxy, which prevent other checks.
func wholeFaults() []*fault {
	controllers := func(r *run, replicas string) {
		r.kubectl("scale", "deployment", "-n", system, "nodeproxy-controller", "--replicas="+replicas)
	}
	changed := service("late", "NotRendered", "shop/late", `
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
`)
	return []*fault{
		{
			name: "controller-stopped", finding: changed.finding, where: changed.where, under: "NoController",
			plant: func(r *run) {
				controllers(r, "0")
				r.until(time.Minute, "no controller runs", func() error {
					if pods := r.kubectl("get", "pods", "-n", system, "-l", "app.kubernetes.io/name=nodeproxy-controller", "-o", "name"); pods != "" {
						return fmt.Errorf("there are %s", pods)
					}
					return nil
				})
				changed.plant(r)
			},
			repair: func(r *run) {
				controllers(r, "2")
				changed.repair(r)
			},
		},
		{
			name: "nodeproxy-deleted", finding: "NoNodeProxy",
			plant:  func(r *run) { r.kubectl("delete", "nodeproxy", "cluster") },
			repair: func(r *run) { r.kubectl("apply", "-f", filepath.Join(r.root, sample)) },
		},
	}
}
