package api_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// nodePolicy is a spec of a NodeProxyPolicy for all nodes, with more fields.
func nodePolicy(fields string) string {
	return "nodeSelector: {}\n" + withSettings(fields)
}

func withSettings(fields string) string {
	if strings.Contains(fields, "settings:") {
		return fields
	}
	return "settings: {}\n" + fields
}

// servicePolicy is a spec of a ServiceProxyPolicy for all Services.
func servicePolicy(overrides string) string {
	return "namespaceSelector: {}\nserviceSelector: {}\noverrides: " + overrides
}

// A selector that is left out by mistake must not select everything.
func TestSelectorsAreWrittenOut(t *testing.T) {
	checkKindInvalid(t, "NodeProxyPolicy", []invalidSpec{
		{"no nodeSelector", `settings: {mode: IPVS}`, []string{"spec.nodeSelector: Required value"}},
		{"nodeSelector null", "nodeSelector:\nsettings: {mode: IPVS}", []string{"spec.nodeSelector"}},
		{"no settings", `nodeSelector: {}`, []string{"spec.settings: Required value"}},
		{"nothing", `{}`, []string{"spec.nodeSelector: Required value", "spec.settings: Required value"}},
	})
	checkKindInvalid(t, "ServiceProxyPolicy", []invalidSpec{
		{"no namespaceSelector", `{serviceSelector: {}, overrides: {nodePorts: Disabled}}`, []string{"spec.namespaceSelector: Required value"}},
		{"no serviceSelector", `{namespaceSelector: {}, overrides: {nodePorts: Disabled}}`, []string{"spec.serviceSelector: Required value"}},
		{"no overrides", `{namespaceSelector: {}, serviceSelector: {}}`, []string{"spec.overrides: Required value"}},
	})
}

// selectors are selectors that are invalid, whatever they are for.
func selectors(field string) []invalidSpec {
	const operators = `supported values: "In", "NotIn", "Exists", "DoesNotExist"`
	at := "spec." + field + ".matchExpressions[0]"
	return []invalidSpec{
		{"unknown operator", `{matchExpressions: [{key: pool, operator: Near}]}`, []string{at + `.operator: Unsupported value: "Near"`, operators}},
		{"operator in lower case", `{matchExpressions: [{key: pool, operator: in, values: [a]}]}`, []string{at + ".operator", operators}},
		{"no operator", `{matchExpressions: [{key: pool}]}`, []string{at + ".operator: Required value"}},
		{"no key", `{matchExpressions: [{operator: Exists}]}`, []string{at + ".key: Required value"}},
		{"empty key", `{matchExpressions: [{key: "", operator: Exists}]}`, []string{at + ".key", "key must be a label key"}},
		{"key with a blank", `{matchExpressions: [{key: "node pool", operator: Exists}]}`, []string{at + ".key", "key must be a label key"}},
		{"key with two slashes", `{matchExpressions: [{key: "a/b/c", operator: Exists}]}`, []string{at + ".key", "key must be a label key"}},
		{"key that ends with a dash", `{matchExpressions: [{key: "pool-", operator: Exists}]}`, []string{at + ".key", "key must be a label key"}},
		{"name of a key too long", `{matchExpressions: [{key: ` + strings.Repeat("a", 64) + `, operator: Exists}]}`, []string{at + ".key", "key must be a label key"}},
		{"In without values", `{matchExpressions: [{key: pool, operator: In}]}`, []string{at + ".values", "values is required with operator In or NotIn"}},
		{"NotIn with no values", `{matchExpressions: [{key: pool, operator: NotIn, values: []}]}`, []string{at + ".values", "values is required with operator In or NotIn"}},
		{"Exists with values", `{matchExpressions: [{key: pool, operator: Exists, values: [edge]}]}`, []string{at + ".values", "values is only valid with operator In or NotIn: remove it"}},
		{"DoesNotExist with values", `{matchExpressions: [{key: pool, operator: DoesNotExist, values: [edge]}]}`, []string{at + ".values", "values is only valid with operator In or NotIn"}},
		{"value with a blank", `{matchExpressions: [{key: pool, operator: In, values: [edge, "edge 2"]}]}`, []string{at + ".values", "values must be label values"}},
		{"value too long", `{matchExpressions: [{key: pool, operator: In, values: [` + strings.Repeat("a", 64) + `]}]}`, []string{at + ".values[0]: Too long"}},
		{"a label as a list", `{matchLabels: [pool]}`, []string{"spec." + field + ".matchLabels"}},
		{"a number as a value", `{matchLabels: {pool: 1}}`, []string{"spec." + field + ".matchLabels.pool", "must be of type string"}},
		{"labels at the top", `{pool: edge}`, []string{`unknown field "spec.` + field + `.pool"`}},
	}
}

func TestSelectorsInvalid(t *testing.T) {
	for field, policy := range map[string]struct{ kind, spec string }{
		"nodeSelector":      {"NodeProxyPolicy", "{nodeSelector: %s, settings: {mode: IPVS}}"},
		"namespaceSelector": {"ServiceProxyPolicy", "{namespaceSelector: %s, serviceSelector: {}, overrides: {nodePorts: Disabled}}"},
		"serviceSelector":   {"ServiceProxyPolicy", "{namespaceSelector: {}, serviceSelector: %s, overrides: {nodePorts: Disabled}}"},
	} {
		t.Run(field, func(t *testing.T) {
			cases := selectors(field)
			for i := range cases {
				cases[i].spec = fmt.Sprintf(policy.spec, cases[i].spec)
			}
			checkKindInvalid(t, policy.kind, cases)
		})
	}
}

func TestPrioritiesInvalid(t *testing.T) {
	for kind, spec := range map[string]string{"NodeProxyPolicy": nodePolicy(""), "ServiceProxyPolicy": servicePolicy("{}")} {
		t.Run(kind, func(t *testing.T) {
			checkKindInvalid(t, kind, []invalidSpec{
				{"a word", spec + "\npriority: high", []string{"spec.priority", "must be of type integer"}},
				{"a fraction", spec + "\npriority: 1.5", []string{"spec.priority", "must be of type integer"}},
				{"too large", spec + "\npriority: 2147483648", []string{"spec.priority", "less than or equal to 2147483647"}},
			})
		})
	}
}

// The rules of settings are those of NodeProxy, so one of each kind will do.
func TestNodeProxyPoliciesInvalid(t *testing.T) {
	const maxUnavailable = "rollout.maxUnavailable must be a number of nodes, 1 or more, or 1% to 100%"
	const deadline = "rollout.progressDeadlineSeconds must be 1 or more"
	cases := []invalidSpec{
		{"unknown mode", `settings: {mode: Winkernel}`, []string{`spec.settings.mode: Unsupported value: "Winkernel"`}},
		{"unknown scheduler", `settings: {ipvs: {scheduler: leastconn}}`, []string{"spec.settings.ipvs.scheduler", "settings.ipvs.scheduler must be a Linux IPVS scheduler: rr, wrr, "}},
		{"malformed CIDR of pods", `settings: {detectLocal: {mode: ClusterCIDR, clusterCIDRs: ["10.244.0.0"]}}`,
			[]string{"spec.settings.detectLocal.clusterCIDRs", "must contain CIDRs such as"}},
		{"malformed CIDR of node ports", `settings: {nodePorts: {addressMode: CIDRs, cidrs: ["192.0.2.0/33"]}}`,
			[]string{"spec.settings.nodePorts.cidrs", "must contain CIDRs such as"}},
		{"malformed excluded CIDR", `settings: {ipvs: {excludeCIDRs: [gateway]}}`, []string{"spec.settings.ipvs.excludeCIDRs", "must contain CIDRs such as"}},
		{"detectLocal without mode", `settings: {detectLocal: {interface: cni0}}`, []string{"spec.settings.detectLocal.mode: Required value"}},
		{"ClusterCIDR without CIDRs", `settings: {detectLocal: {mode: ClusterCIDR}}`,
			[]string{"spec.settings.detectLocal.clusterCIDRs", "is required with mode ClusterCIDR"}},
		{"CIDRs of another mode", `settings: {detectLocal: {mode: NodeCIDR, clusterCIDRs: ["10.244.0.0/16"]}}`,
			[]string{"spec.settings.detectLocal.clusterCIDRs", "is only valid with mode ClusterCIDR"}},
		{"BridgeInterface without interface", `settings: {detectLocal: {mode: BridgeInterface}}`,
			[]string{"spec.settings.detectLocal.interface", "is required with mode BridgeInterface"}},
		{"node ports CIDRs without cidrs", `settings: {nodePorts: {addressMode: CIDRs}}`,
			[]string{"spec.settings.nodePorts.cidrs", "is required with addressMode CIDRs"}},
		{"cidrs without addressMode", `settings: {nodePorts: {cidrs: ["192.0.2.0/24"]}}`,
			[]string{"spec.settings.nodePorts.cidrs", "is only valid with addressMode CIDRs"}},
		{"intervals of one policy against each other", `settings: {sync: {verifyIntervalSeconds: 5, minIntervalMilliseconds: 6000}}`,
			[]string{"spec.settings.sync.verifyIntervalSeconds", "must not be shorter than settings.sync.minIntervalMilliseconds"}},
		{"negative conntrack", `settings: {conntrack: {maxPerCore: -1}}`, []string{"spec.settings.conntrack.maxPerCore", "must be 0 or more"}},
		{"masquerade bit 32", `settings: {masquerade: {bit: 32}}`, []string{"spec.settings.masquerade.bit", "must be 0 to 31"}},

		{"no node may change", `rollout: {maxUnavailable: 0}`, []string{"spec.rollout.maxUnavailable", maxUnavailable}},
		{"fewer than none", `rollout: {maxUnavailable: -1}`, []string{"spec.rollout.maxUnavailable", maxUnavailable}},
		// One such object would keep every client from decoding the list of all.
		{"more than 32 bits hold", `rollout: {maxUnavailable: 4294967297}`, []string{"spec.rollout.maxUnavailable", "must be at most 2147483647 nodes"}},
		{"zero percent", `rollout: {maxUnavailable: "0%"}`, []string{"spec.rollout.maxUnavailable", maxUnavailable}},
		{"more than all", `rollout: {maxUnavailable: "101%"}`, []string{"spec.rollout.maxUnavailable", maxUnavailable}},
		{"half a percent", `rollout: {maxUnavailable: "0.5%"}`, []string{"rollout.maxUnavailable must be a number of nodes"}},
		{"a number as a string", `rollout: {maxUnavailable: "3"}`, []string{"spec.rollout.maxUnavailable", maxUnavailable}},
		{"deadline 0", `rollout: {progressDeadlineSeconds: 0}`, []string{"spec.rollout.progressDeadlineSeconds", deadline}},
		{"deadline negative", `rollout: {progressDeadlineSeconds: -600}`, []string{"spec.rollout.progressDeadlineSeconds", deadline}},
		{"deadline with a unit", `rollout: {progressDeadlineSeconds: 10m}`, []string{"spec.rollout.progressDeadlineSeconds", "must be of type integer"}},
		{"paused as a word", `rollout: {paused: "yes"}`, []string{"spec.rollout.paused", "must be of type boolean"}},
		{"a field of another kind", `overrides: {nodePorts: Disabled}`, []string{`unknown field "spec.overrides"`}},
		{"a setting at the top", `mode: IPVS`, []string{`unknown field "spec.mode"`}},
	}
	for i := range cases {
		cases[i].spec = nodePolicy(cases[i].spec)
	}
	checkKindInvalid(t, "NodeProxyPolicy", cases)
}

func TestServiceProxyPoliciesInvalid(t *testing.T) {
	const ranges = "overrides.loadBalancerSourceRanges must contain CIDRs such as 198.51.100.0/24 or 2001:db8::/64"
	const timeout = "overrides.sessionAffinity.clientIPTimeoutSeconds must be 1 to 86400 (a day)"
	cases := []invalidSpec{
		{"range without a prefix", `{loadBalancerSourceRanges: ["198.51.100.7"]}`, []string{"spec.overrides.loadBalancerSourceRanges", ranges}},
		{"range with too long a prefix", `{loadBalancerSourceRanges: ["198.51.100.0/24", "198.51.100.0/33"]}`, []string{ranges}},
		{"range with blanks", `{loadBalancerSourceRanges: [" 198.51.100.0/24"]}`, []string{ranges}},
		{"no ranges: none or all?", `{loadBalancerSourceRanges: []}`,
			[]string{"spec.overrides.loadBalancerSourceRanges", "must contain at least one CIDR", "0.0.0.0/0 and ::/0"}},
		{"node ports true", `{nodePorts: true}`, []string{"spec.overrides.nodePorts"}},
		{"node ports none", `{nodePorts: None}`, []string{`spec.overrides.nodePorts: Unsupported value: "None"`, `"Enabled", "Disabled"`}},
		{"external IPs off", `{externalIPs: "off"}`, []string{`spec.overrides.externalIPs: Unsupported value: "off"`}},
		{"unknown internal policy", `{internalTrafficPolicy: PreferLocal}`, []string{"spec.overrides.internalTrafficPolicy: Unsupported value", `"Cluster", "Local"`}},
		{"unknown external policy", `{externalTrafficPolicy: local}`, []string{"spec.overrides.externalTrafficPolicy: Unsupported value"}},
		{"affinity half given", `{sessionAffinity: {}}`, []string{"spec.overrides.sessionAffinity.clientIPTimeoutSeconds: Required value"}},
		{"affinity as of a Service", `{sessionAffinity: ClientIP}`, []string{"spec.overrides.sessionAffinity", "must be of type object"}},
		{"affinity without time", `{sessionAffinity: {clientIPTimeoutSeconds: 0}}`, []string{"spec.overrides.sessionAffinity.clientIPTimeoutSeconds", timeout}},
		{"affinity for more than a day", `{sessionAffinity: {clientIPTimeoutSeconds: 86401}}`, []string{timeout}},
		{"unknown scheduler", `{ipvsScheduler: robin}`, []string{"spec.overrides.ipvsScheduler", "overrides.ipvsScheduler must be a Linux IPVS scheduler: rr, wrr, "}},
		{"empty scheduler", `{ipvsScheduler: ""}`, []string{"overrides.ipvsScheduler must be a Linux IPVS scheduler"}},
		{"a setting of nodes", `{mode: IPVS}`, []string{`unknown field "spec.overrides.mode"`}},
		{"a rollout, which Services have not", "{}\nrollout: {maxUnavailable: 1}", []string{`unknown field "spec.rollout"`}},
	}
	for i := range cases {
		cases[i].spec = servicePolicy(cases[i].spec)
	}
	checkKindInvalid(t, "ServiceProxyPolicy", cases)
}

// every is a list of n entries.
func every(n int, entry string) string {
	return "[" + strings.TrimSuffix(strings.Repeat(entry+", ", n), ", ") + "]"
}

// largeSelector is as large as a selector may be.
func largeSelector() string {
	var pairs []string
	for i := range 32 {
		pairs = append(pairs, fmt.Sprintf("%s%02d: %s", strings.Repeat("k", 61), i, strings.Repeat("v", 63)))
	}
	key := strings.Repeat("e", 250) + ".io/" + strings.Repeat("k", 62)
	expression := fmt.Sprintf("{key: %s, operator: In, values: %s}", key[len(key)-313:], every(32, strings.Repeat("v", 63)))
	return fmt.Sprintf("{matchLabels: {%s}, matchExpressions: %s}", strings.Join(pairs, ", "), every(32, expression))
}

func TestPoliciesAccepted(t *testing.T) {
	accepted := map[string]map[string]string{
		"NodeProxyPolicy": {
			"least":                     nodePolicy(""),
			"lowest priority":           nodePolicy("priority: -2147483648"),
			"highest priority":          nodePolicy("priority: 2147483647"),
			"priority 0":                nodePolicy("priority: 0"),
			"label of a domain":         `{nodeSelector: {matchExpressions: [{key: node-role.kubernetes.io/control-plane, operator: DoesNotExist}]}, settings: {}}`,
			"empty value of a label":    `{nodeSelector: {matchExpressions: [{key: pool, operator: In, values: [""]}]}, settings: {}}`,
			"Exists with no values":     `{nodeSelector: {matchExpressions: [{key: pool, operator: Exists, values: []}]}, settings: {}}`,
			"the largest selector":      "nodeSelector: " + largeSelector() + "\nsettings: {}",
			"all nodes at once":         nodePolicy(`rollout: {maxUnavailable: "100%"}`),
			"one percent":               nodePolicy(`rollout: {maxUnavailable: "1%"}`),
			"very many nodes":           nodePolicy(`rollout: {maxUnavailable: 2147483647, progressDeadlineSeconds: 2147483647}`),
			"paused":                    nodePolicy(`rollout: {paused: true}`),
			"nothing about the rollout": nodePolicy(`rollout: {}`),
			// Against NodeProxy's it may not hold; the controller reports it.
			"half of what belongs together": nodePolicy(`settings: {sync: {minIntervalMilliseconds: 90000}}`),
			"the longest lists": nodePolicy(fmt.Sprintf(`settings: {nodePorts: {addressMode: CIDRs, cidrs: %s}, ipvs: {excludeCIDRs: %[2]s}}`,
				every(32, `"2001:db8:1111:2222:3333:4444:5555:6666/128"`), every(64, `"2001:db8:1111:2222:3333:4444:5555:6666/128"`))),
		},
		"ServiceProxyPolicy": {
			"least":                      servicePolicy("{}"),
			"the largest selectors":      "namespaceSelector: " + largeSelector() + "\nserviceSelector: " + largeSelector() + "\noverrides: {}",
			"everybody":                  servicePolicy(`{loadBalancerSourceRanges: ["0.0.0.0/0", "::/0"]}`),
			"bits after the prefix":      servicePolicy(`{loadBalancerSourceRanges: ["198.51.100.7/24"]}`),
			"the longest list of ranges": servicePolicy(fmt.Sprintf(`{loadBalancerSourceRanges: %s}`, every(256, `"2001:db8:1111:2222:3333:4444:5555:6666/128"`))),
			"shortest affinity":          servicePolicy(`{sessionAffinity: {clientIPTimeoutSeconds: 1}}`),
			"longest affinity":           servicePolicy(`{sessionAffinity: {clientIPTimeoutSeconds: 86400}}`),
			"against weaker policies":    servicePolicy(`{nodePorts: Enabled, externalIPs: Enabled, internalTrafficPolicy: Cluster, externalTrafficPolicy: Cluster, ipvsScheduler: mh, serving: Kernel}`),
		},
	}
	for _, kind := range slices.Sorted(maps.Keys(accepted)) {
		for _, title := range slices.Sorted(maps.Keys(accepted[kind])) {
			checkAccepted(t, kind, kind+", "+title, accepted[kind][title])
		}
	}
}
