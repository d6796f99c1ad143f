package kubeproxy

import (
	"fmt"
	"slices"
	"strings"
)

// Field is what becomes of fields of KubeProxyConfiguration that have one meaning.
type Field struct {
	// Paths are their JSON paths.
	Paths []string
	// Becomes are the fields of spec.settings to which they are carried over; empty: they are
	// not.
	Becomes []string
	// Why explains why a field is not carried over, or how.
	Why string

	// carry carries them over. Without Becomes, it records values that are lost; nil: there is
	// nothing to lose.
	carry func(*translation)
}

// lost reports whether values of the field can be lost.
func (f *Field) lost() bool { return len(f.Becomes) == 0 && f.carry != nil }

// Fields returns what becomes of every field of KubeProxyConfiguration.
func Fields() []Field {
	return []Field{
		{Paths: []string{"mode"}, Becomes: []string{"mode"}, Why: "NFTables has [requirements](nftables.md#node-requirements)", carry: (*translation).mode},
		{Paths: []string{"detectLocalMode", "detectLocal.bridgeInterface", "detectLocal.interfaceNamePrefix", "clusterCIDR"},
			Becomes: []string{"detectLocal"}, Why: "mode None without `clusterCIDR`", carry: (*translation).detectLocal},
		{Paths: []string{"nodePortAddresses"}, Becomes: []string{"nodePorts.addressMode", "nodePorts.cidrs"},
			Why: "in mode nftables by default Primary", carry: (*translation).nodePortAddresses},
		{Paths: []string{"iptables.localhostNodePorts"}, Becomes: []string{"nodePorts.localhost"}, carry: (*translation).localhost},
		{Paths: []string{"iptables.masqueradeAll", "nftables.masqueradeAll"}, Becomes: []string{"masquerade.all"}, carry: (*translation).masqueradeAll},
		{Paths: []string{"iptables.masqueradeBit", "nftables.masqueradeBit"}, Becomes: []string{"masquerade.bit"}, carry: (*translation).masqueradeBit},
		{Paths: []string{"iptables.minSyncPeriod", "ipvs.minSyncPeriod", "nftables.minSyncPeriod"},
			Becomes: []string{"sync.minIntervalMilliseconds"}, Why: "optional: nodeproxy only writes what differs", carry: (*translation).minSyncPeriod},
		{Paths: []string{"ipvs.scheduler"}, Becomes: []string{"ipvs.scheduler"}, carry: (*translation).scheduler},
		{Paths: []string{"ipvs.excludeCIDRs"}, Becomes: []string{"ipvs.excludeCIDRs"}, carry: (*translation).excludeCIDRs},
		{Paths: []string{"ipvs.strictARP"}, Becomes: []string{"ipvs.strictARP"}, carry: (*translation).strictARP},
		{Paths: []string{"ipvs.tcpTimeout"}, Becomes: []string{"ipvs.tcpTimeoutSeconds"}, carry: (*translation).ipvsTCPTimeout},
		{Paths: []string{"ipvs.tcpFinTimeout"}, Becomes: []string{"ipvs.tcpFinTimeoutSeconds"}, carry: (*translation).ipvsTCPFinTimeout},
		{Paths: []string{"ipvs.udpTimeout"}, Becomes: []string{"ipvs.udpTimeoutSeconds"}, carry: (*translation).ipvsUDPTimeout},
		{Paths: []string{"conntrack.maxPerCore"}, Becomes: []string{"conntrack.maxPerCore"}, carry: (*translation).maxPerCore},
		{Paths: []string{"conntrack.min"}, Becomes: []string{"conntrack.min"}, carry: (*translation).conntrackMin},
		{Paths: []string{"conntrack.tcpEstablishedTimeout"}, Becomes: []string{"conntrack.tcpEstablishedTimeoutSeconds"}, carry: (*translation).tcpEstablished},
		{Paths: []string{"conntrack.tcpCloseWaitTimeout"}, Becomes: []string{"conntrack.tcpCloseWaitTimeoutSeconds"}, carry: (*translation).tcpCloseWait},
		{Paths: []string{"conntrack.tcpBeLiberal"}, Becomes: []string{"conntrack.tcpBeLiberal"}, carry: (*translation).tcpBeLiberal},
		{Paths: []string{"conntrack.udpTimeout"}, Becomes: []string{"conntrack.udpTimeoutSeconds"}, carry: (*translation).udpTimeout},
		{Paths: []string{"conntrack.udpStreamTimeout"}, Becomes: []string{"conntrack.udpStreamTimeoutSeconds"}, carry: (*translation).udpStreamTimeout},

		{Paths: []string{"hostnameOverride"}, Why: "agents use the Node's name", carry: (*translation).hostname},
		{Paths: []string{"bindAddress"}, Why: "agents use the Node's addresses", carry: (*translation).bindAddress},
		{Paths: []string{"healthzBindAddress"}, carry: (*translation).healthz,
			Why: "managed agents use port 10256 on all addresses; to change that, run them yourself with `--proxy-health-bind-address`"},
		{Paths: []string{"metricsBindAddress"}, carry: (*translation).metrics,
			Why: "managed agents use port 10249 on loopback addresses; to change that, run them yourself with `--metrics-bind-address`"},
		{Paths: []string{"featureGates"}, carry: (*translation).featureGates,
			Why: "what they enable for Services is always on; a ServiceProxyPolicy can disable external IPs"},
		{Paths: []string{"enableProfiling"}, Why: "agents serve no profiles", carry: (*translation).profiling},

		{Paths: []string{"apiVersion", "kind"}, Why: "they identify the file"},
		{Paths: []string{"iptables.syncPeriod", "ipvs.syncPeriod", "nftables.syncPeriod"},
			Why: "agents detect modified rules at once, and verify them every `sync.verifyIntervalSeconds`"},
		{Paths: []string{"configSyncPeriod"}, Why: "agents watch the API server"},
		{Paths: []string{"clientConnection.kubeconfig", "clientConnection.acceptContentTypes", "clientConnection.contentType",
			"clientConnection.qps", "clientConnection.burst"}, Why: "agents use their service account, and `spec.apiServer`"},
		{Paths: []string{"logging.format", "logging.flushFrequency", "logging.verbosity", "logging.vmodule.filePattern", "logging.vmodule.verbosity",
			"logging.options.text.splitStream", "logging.options.text.infoBufferSize", "logging.options.json.splitStream", "logging.options.json.infoBufferSize"},
			Why: "set `spec.agent.logLevel` and `logFormat` as you need them"},
		{Paths: []string{"oomScoreAdj"}, Why: "agents are system-node-critical"},
		{Paths: []string{"bindAddressHardFail"}, Why: "agents retry and report ports that they cannot open"},
		{Paths: []string{"showHiddenMetricsForVersion"}, Why: "agents hide no metrics"},
		{Paths: []string{"portRange"}, Why: "kube-proxy ignores it"},
		{Paths: []string{"winkernel.networkName", "winkernel.sourceVip", "winkernel.enableDSR", "winkernel.rootHnsEndpointName",
			"winkernel.forwardHealthCheckVip", "windowsRunAsService"}, Why: "Windows nodes keep kube-proxy"},
	}
}

// Documentation returns the table of docs/migration.md. Fields that become the same have one row.
func Documentation() string {
	var rows []string
	paths := map[string][]string{}
	for _, f := range Fields() {
		row := f.text()
		if paths[row] == nil {
			rows = append(rows, row)
		}
		paths[row] = append(paths[row], f.Paths...)
	}
	var out strings.Builder
	out.WriteString("| kube-proxy | nodeproxy |\n| --- | --- |\n")
	for _, row := range rows {
		fmt.Fprintf(&out, "| %s | %s |\n", code(paths[row]), row)
	}
	return out.String()
}

// text describes what becomes of the field.
func (f *Field) text() string {
	switch {
	case slices.Equal(f.Becomes, f.Paths) && f.Why == "":
		return "the same"
	case slices.Equal(f.Becomes, []string{f.Paths[0] + "Seconds"}):
		return "the same, with suffix `Seconds`"
	case len(f.Becomes) > 0 && f.Why != "":
		return code(f.Becomes) + "; " + f.Why
	case len(f.Becomes) > 0:
		return code(f.Becomes)
	case f.lost():
		return "not carried over: " + f.Why
	}
	return "not needed: " + f.Why
}

func code(names []string) string { return "`" + strings.Join(names, "`, `") + "`" }
