package api_test

import (
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// invalidSpec is a spec that validation rejects, and what the message must contain.
type invalidSpec struct {
	name string
	spec string
	want []string
}

func TestSettingsInvalid(t *testing.T) {
	const notCIDR = "must contain CIDRs such as"
	checkInvalid(t, []invalidSpec{
		{"unknown mode", `settings: {mode: Winkernel}`,
			[]string{`spec.settings.mode: Unsupported value: "Winkernel"`, `"IPTables", "IPVS", "NFTables", "Userspace"`}},
		{"unknown fallback", `settings: {fallback: IPVS}`, []string{`spec.settings.fallback: Unsupported value: "IPVS"`}},
		{"unknown enforcement", `settings: {enforcement: Dryrun}`, []string{"spec.settings.enforcement: Unsupported value"}},
		{"unknown toggle", `settings: {masquerade: {all: true}}`, []string{"spec.settings.masquerade.all"}},
		{"unknown scheduler", `settings: {ipvs: {scheduler: robin}}`, []string{"settings.ipvs.scheduler must be a Linux IPVS scheduler: rr, wrr, "}},
		{"scheduler in capitals", `settings: {ipvs: {scheduler: "RR"}}`, []string{"settings.ipvs.scheduler must be a Linux IPVS scheduler"}},
		{"empty scheduler", `settings: {ipvs: {scheduler: ""}}`, []string{"settings.ipvs.scheduler must be a Linux IPVS scheduler"}},

		{"cluster CIDR without a prefix", `settings: {detectLocal: {mode: ClusterCIDR, clusterCIDRs: ["10.244.0.0"]}}`,
			[]string{"settings.detectLocal.clusterCIDRs " + notCIDR}},
		{"cluster CIDR with too long a prefix", `settings: {detectLocal: {mode: ClusterCIDR, clusterCIDRs: ["10.244.0.0/33"]}}`,
			[]string{"settings.detectLocal.clusterCIDRs " + notCIDR}},
		{"cluster CIDR mapped into IPv6", `settings: {detectLocal: {mode: ClusterCIDR, clusterCIDRs: ["::ffff:10.244.0.0/112"]}}`,
			[]string{"settings.detectLocal.clusterCIDRs " + notCIDR}},
		{"second cluster CIDR malformed", `settings: {detectLocal: {mode: ClusterCIDR, clusterCIDRs: ["10.244.0.0/16", "fd00::/129"]}}`,
			[]string{"settings.detectLocal.clusterCIDRs " + notCIDR}},
		{"two cluster CIDRs of IPv4", `settings: {detectLocal: {mode: ClusterCIDR, clusterCIDRs: ["10.244.0.0/16", "10.245.0.0/16"]}}`,
			[]string{"settings.detectLocal.clusterCIDRs must contain at most one CIDR per IP family"}},
		{"two cluster CIDRs of IPv6", `settings: {detectLocal: {mode: ClusterCIDR, clusterCIDRs: ["fd00:1::/48", "fd00:2::/48"]}}`,
			[]string{"settings.detectLocal.clusterCIDRs must contain at most one CIDR per IP family"}},
		{"cluster CIDR of every IPv4 address", `settings: {detectLocal: {mode: ClusterCIDR, clusterCIDRs: ["0.0.0.0/0"]}}`,
			[]string{"settings.detectLocal.clusterCIDRs must not contain 0.0.0.0/0 or ::/0", "or mode None with settings.masquerade.all"}},
		{"cluster CIDR of every IPv6 address", `settings: {detectLocal: {mode: ClusterCIDR, clusterCIDRs: ["10.244.0.0/16", "::/0"]}}`,
			[]string{"settings.detectLocal.clusterCIDRs must not contain 0.0.0.0/0 or ::/0"}},
		{"node port CIDR malformed", `settings: {nodePorts: {addressMode: CIDRs, cidrs: ["192.0.2.0/24", "primary"]}}`,
			[]string{"settings.nodePorts.cidrs " + notCIDR}},
		{"node port CIDR with leading zeros", `settings: {nodePorts: {addressMode: CIDRs, cidrs: ["192.0.02.0/24"]}}`,
			[]string{"settings.nodePorts.cidrs " + notCIDR}},
		{"excluded CIDR malformed", `settings: {ipvs: {excludeCIDRs: ["192.0.2.1"]}}`,
			[]string{"settings.ipvs.excludeCIDRs " + notCIDR}},

		{"masquerade bit 32", `settings: {masquerade: {bit: 32}}`, []string{"settings.masquerade.bit must be 0 to 31"}},
		{"masquerade bit -1", `settings: {masquerade: {bit: -1}}`, []string{"settings.masquerade.bit must be 0 to 31"}},

		{"no time to connect", `settings: {userspace: {connectTimeoutMilliseconds: 0}}`, []string{"settings.userspace.connectTimeoutMilliseconds must be 1 or more"}},
		{"no connections", `settings: {userspace: {maxConnections: 0}}`, []string{"settings.userspace.maxConnections must be 1 or more"}},
		{"no connections to a port", `settings: {userspace: {maxConnectionsPerPort: -1}}`, []string{"settings.userspace.maxConnectionsPerPort must be 1 or more"}},

		{"verification more often than every 5 s", `settings: {sync: {verifyIntervalSeconds: 4}}`,
			[]string{"settings.sync.verifyIntervalSeconds must be 5 or more"}},
		{"verification negative", `settings: {sync: {verifyIntervalSeconds: -60}}`,
			[]string{"settings.sync.verifyIntervalSeconds must be 5 or more"}},
		{"verification shorter than the minimum interval", `settings: {sync: {verifyIntervalSeconds: 10, minIntervalMilliseconds: 10001}}`,
			[]string{"settings.sync.verifyIntervalSeconds", "must not be shorter than settings.sync.minIntervalMilliseconds"}},
		{"default verification shorter than the minimum interval", `settings: {sync: {minIntervalMilliseconds: 60001}}`,
			[]string{"settings.sync.verifyIntervalSeconds (default 60)", "settings.sync.minIntervalMilliseconds"}},
	})
}

func TestNegativeNumbersInvalid(t *testing.T) {
	var cases []invalidSpec
	for _, path := range []string{
		"settings.masquerade.bit",
		"settings.ipvs.tcpTimeoutSeconds", "settings.ipvs.tcpFinTimeoutSeconds", "settings.ipvs.udpTimeoutSeconds",
		"settings.sync.minIntervalMilliseconds", "settings.sync.verifyIntervalSeconds",
		"settings.conntrack.maxPerCore", "settings.conntrack.min",
		"settings.conntrack.tcpEstablishedTimeoutSeconds", "settings.conntrack.tcpCloseWaitTimeoutSeconds",
		"settings.conntrack.udpTimeoutSeconds", "settings.conntrack.udpStreamTimeoutSeconds",
		"rollout.maxUnavailable", "rollout.progressDeadlineSeconds",
		"agent.logLevel",
	} {
		parts := strings.Split(path, ".")
		spec := strings.Join(parts, ": {") + ": -1" + strings.Repeat("}", len(parts)-1)
		cases = append(cases, invalidSpec{path, spec, []string{"spec." + path, path + " must be"}})
	}
	checkInvalid(t, cases)
}

func TestUnionsInvalid(t *testing.T) {
	const interfaceOnly = "settings.detectLocal.interface is only valid with mode BridgeInterface"
	checkInvalid(t, []invalidSpec{
		{"detectLocal without mode", `settings: {detectLocal: {clusterCIDRs: ["10.244.0.0/16"]}}`,
			[]string{"spec.settings.detectLocal.mode: Required value"}},
		{"ClusterCIDR without CIDRs", `settings: {detectLocal: {mode: ClusterCIDR}}`,
			[]string{"settings.detectLocal.clusterCIDRs is required with mode ClusterCIDR"}},
		{"ClusterCIDR with no CIDRs", `settings: {detectLocal: {mode: ClusterCIDR, clusterCIDRs: []}}`,
			[]string{"settings.detectLocal.clusterCIDRs is required with mode ClusterCIDR"}},
		{"BridgeInterface without interface", `settings: {detectLocal: {mode: BridgeInterface}}`,
			[]string{"settings.detectLocal.interface is required with mode BridgeInterface"}},
		{"BridgeInterface with an empty interface", `settings: {detectLocal: {mode: BridgeInterface, interface: ""}}`,
			[]string{"settings.detectLocal.interface is required with mode BridgeInterface"}},
		{"InterfaceNamePrefix without prefix", `settings: {detectLocal: {mode: InterfaceNamePrefix}}`,
			[]string{"settings.detectLocal.interfaceNamePrefix is required with mode InterfaceNamePrefix"}},
		{"NodeCIDR with clusterCIDRs", `settings: {detectLocal: {mode: NodeCIDR, clusterCIDRs: ["10.244.0.0/16"]}}`,
			[]string{"settings.detectLocal.clusterCIDRs is only valid with mode ClusterCIDR"}},
		{"ClusterCIDR with interface", `settings: {detectLocal: {mode: ClusterCIDR, clusterCIDRs: ["10.244.0.0/16"], interface: cni0}}`,
			[]string{interfaceOnly}},
		{"None with an empty interface", `settings: {detectLocal: {mode: None, interface: ""}}`, []string{interfaceOnly}},
		{"None with interface", `settings: {detectLocal: {mode: None, interface: cni0}}`, []string{interfaceOnly}},
		{"BridgeInterface with prefix", `settings: {detectLocal: {mode: BridgeInterface, interface: cni0, interfaceNamePrefix: veth}}`,
			[]string{"settings.detectLocal.interfaceNamePrefix is only valid with mode InterfaceNamePrefix"}},
		{"interface with a blank", `settings: {detectLocal: {mode: BridgeInterface, interface: "cni0 -j"}}`,
			[]string{"settings.detectLocal.interface may contain"}},
		{"interface longer than the kernel takes", `settings: {detectLocal: {mode: BridgeInterface, interface: "bridge0123456789"}}`,
			[]string{"spec.settings.detectLocal.interface: Too long"}},
		{"prefix with a wildcard", `settings: {detectLocal: {mode: InterfaceNamePrefix, interfaceNamePrefix: "veth+"}}`,
			[]string{"settings.detectLocal.interfaceNamePrefix may contain"}},
		{"CIDRs without cidrs", `settings: {nodePorts: {addressMode: CIDRs}}`,
			[]string{"settings.nodePorts.cidrs is required with addressMode CIDRs"}},
		{"Primary with cidrs", `settings: {nodePorts: {addressMode: Primary, cidrs: ["192.0.2.0/24"]}}`,
			[]string{"settings.nodePorts.cidrs is only valid with addressMode CIDRs"}},
		{"cidrs without addressMode", `settings: {nodePorts: {cidrs: ["192.0.2.0/24"]}}`,
			[]string{"settings.nodePorts.cidrs is only valid with addressMode CIDRs"}},
	})
}

func TestRolloutAgentAndAPIServerInvalid(t *testing.T) {
	const maxUnavailable = "rollout.maxUnavailable must be a number of nodes, 1 or more, or 1% to 100%"
	const https = "apiServer.endpoints must contain https URLs such as https://192.0.2.10:6443"
	checkInvalid(t, []invalidSpec{
		{"no node may change", `rollout: {maxUnavailable: 0}`, []string{maxUnavailable}},
		{"zero percent", `rollout: {maxUnavailable: "0%"}`, []string{maxUnavailable}},
		{"negative percent", `rollout: {maxUnavailable: "-5%"}`, []string{maxUnavailable}},
		{"more than all", `rollout: {maxUnavailable: "101%"}`, []string{maxUnavailable}},
		{"a number as a string", `rollout: {maxUnavailable: "3"}`, []string{maxUnavailable}},
		{"no time to progress", `rollout: {progressDeadlineSeconds: 0}`, []string{"rollout.progressDeadlineSeconds must be 1 or more"}},
		// Kubernetes 1.31 does not validate the format int32; no client could read the object.
		{"more time to progress than an int32", `rollout: {progressDeadlineSeconds: 2147483648}`, []string{"spec.rollout.progressDeadlineSeconds", "less than or equal to 2147483647"}},
		{"a table larger than an int32", `settings: {conntrack: {maxPerCore: 2147483648}}`, []string{"spec.settings.conntrack.maxPerCore", "less than or equal to 2147483647"}},
		{"relative state directory", `agent: {stateDir: nodeproxy}`, []string{"agent.stateDir must be an absolute path"}},
		{"unknown management", `agent: {management: Auto}`, []string{"spec.agent.management: Unsupported value"}},
		{"unknown removal policy", `removalPolicy: Delete`, []string{"spec.removalPolicy: Unsupported value"}},
		{"Secret without name", `agent: {imagePullSecrets: [{name: registry}, {}]}`, []string{"agent.imagePullSecrets must name Secrets, such as name: registry"}},
		{"unknown log format", `agent: {logFormat: json}`, []string{"spec.agent.logFormat: Unsupported value"}},
		{"http endpoint", `apiServer: {endpoints: ["http://192.0.2.10:6443"]}`, []string{https}},
		{"endpoint without scheme", `apiServer: {endpoints: ["https://192.0.2.10:6443", "192.0.2.11:6443"]}`, []string{https}},
		{"endpoint without host", `apiServer: {endpoints: ["https://:6443"]}`, []string{https}},
		{"unknown field", `settings: {masqueradeAll: Enabled}`, []string{`unknown field "spec.settings.masqueradeAll"`}},
	})
}

func checkInvalid(t *testing.T, cases []invalidSpec) {
	t.Helper()
	checkKindInvalid(t, "NodeProxy", cases)
}

// checkKindInvalid checks that specs of a kind are invalid.
func checkKindInvalid(t *testing.T, kind string, cases []invalidSpec) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			err := server.client.Create(t.Context(), newObject(t, kind, "cluster", c.spec),
				client.DryRunAll, client.FieldValidation("Strict"))
			if err == nil {
				t.Fatalf("accepted: %s", c.spec)
			}
			t.Log(err)
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the message does not state %q:\n%v", want, err)
				}
			}
		})
	}
}

func TestOnlyTheNameClusterIsAccepted(t *testing.T) {
	for _, name := range []string{"default", "cluster2", "cluster.local"} {
		err := server.client.Create(t.Context(), newNodeProxy(t, name, `{}`), client.DryRunAll)
		if err == nil {
			t.Fatalf("the name %s was accepted", name)
		}
		t.Log(err)
		if !strings.Contains(err.Error(), "metadata.name must be cluster") {
			t.Errorf("the message does not state which name is allowed: %v", err)
		}
	}
}

func TestAccepted(t *testing.T) {
	for name, spec := range map[string]string{
		"nothing":                            `{}`,
		"empty settings":                     `settings: {}`,
		"lowest masquerade bit":              `settings: {masquerade: {bit: 0}}`,
		"highest masquerade bit":             `settings: {masquerade: {bit: 31}}`,
		"one CIDR of each family":            `settings: {detectLocal: {mode: ClusterCIDR, clusterCIDRs: ["fd00:10:244::/56", "10.244.0.0/16"]}}`,
		"IPv6 alone":                         `settings: {detectLocal: {mode: ClusterCIDR, clusterCIDRs: ["fd00:10:244::/56"]}}`,
		"bridge":                             `settings: {detectLocal: {mode: BridgeInterface, interface: br-0123.4567_89}}`,
		"prefix":                             `settings: {detectLocal: {mode: InterfaceNamePrefix, interfaceNamePrefix: veth}}`,
		"node CIDR":                          `settings: {detectLocal: {mode: NodeCIDR}}`,
		"empty fields of a union":            `settings: {detectLocal: {mode: NodeCIDR, clusterCIDRs: []}, nodePorts: {cidrs: []}}`,
		"CIDRs with bits after the prefix":   `settings: {detectLocal: {mode: ClusterCIDR, clusterCIDRs: ["10.244.1.5/16"]}, ipvs: {excludeCIDRs: ["192.0.2.7/24"]}}`,
		"node ports everywhere":              `settings: {nodePorts: {addressMode: CIDRs, cidrs: ["0.0.0.0/0", "::/0"]}}`,
		"node ports not on localhost":        `settings: {nodePorts: {localhost: Disabled}}`,
		"verification every 5 s":             `settings: {sync: {verifyIntervalSeconds: 5}}`,
		"no minimum interval":                `settings: {sync: {minIntervalMilliseconds: 0}}`,
		"intervals equal":                    `settings: {sync: {minIntervalMilliseconds: 60000}}`,
		"longest verification":               `settings: {sync: {verifyIntervalSeconds: 2147483647, minIntervalMilliseconds: 2147483647}}`,
		"zero timeouts":                      `settings: {ipvs: {tcpTimeoutSeconds: 0}, conntrack: {maxPerCore: 0, min: 0, udpTimeoutSeconds: 0}}`,
		"all nodes at once":                  `rollout: {maxUnavailable: "100%"}`,
		"one percent":                        `rollout: {maxUnavailable: "1%"}`,
		"five nodes":                         `rollout: {maxUnavailable: 5, progressDeadlineSeconds: 1}`,
		"API servers":                        `apiServer: {endpoints: ["https://192.0.2.10:6443", "https://[2001:db8::1]:6443", "https://api.example.com"]}`,
		"longest lists that a list may hold": `settings: {nodePorts: {addressMode: CIDRs, cidrs: [` + strings.Repeat(`"2001:db8:1111:2222:3333:4444:5555:6666/128", `, 32) + `]}}`,
	} {
		checkAccepted(t, "NodeProxy", name, spec)
	}
}

func checkAccepted(t *testing.T, kind, title, spec string) {
	t.Helper()
	t.Run(title, func(t *testing.T) {
		err := server.client.Create(t.Context(), newObject(t, kind, "cluster", spec),
			client.DryRunAll, client.FieldValidation("Strict"))
		if err != nil {
			t.Errorf("invalid: %v", err)
		}
	})
}
