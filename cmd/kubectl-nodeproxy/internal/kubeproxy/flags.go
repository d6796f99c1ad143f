package kubeproxy

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Flags of special meaning.
const (
	flagConfig      = "config"
	flagHostname    = "hostname-override"
	flagHealthzPort = "healthz-port"
	flagMetricsPort = "metrics-port"
	flagMinSync     = "iptables-min-sync-period"
	flagIPVSMinSync = "ipvs-min-sync-period"
)

// flagFields are kube-proxy's flags that set a field, with its JSON path.
func flagFields() map[string]string {
	return map[string]string{
		"bind-address":                      "bindAddress",
		"cluster-cidr":                      "clusterCIDR",
		"conntrack-max-per-core":            "conntrack.maxPerCore",
		"conntrack-min":                     "conntrack.min",
		"conntrack-tcp-be-liberal":          "conntrack.tcpBeLiberal",
		"conntrack-tcp-timeout-close-wait":  "conntrack.tcpCloseWaitTimeout",
		"conntrack-tcp-timeout-established": "conntrack.tcpEstablishedTimeout",
		"conntrack-udp-timeout":             "conntrack.udpTimeout",
		"conntrack-udp-timeout-stream":      "conntrack.udpStreamTimeout",
		"detect-local-mode":                 "detectLocalMode",
		"feature-gates":                     "featureGates",
		"healthz-bind-address":              "healthzBindAddress",
		flagHostname:                        "hostnameOverride",
		"iptables-localhost-nodeports":      "iptables.localhostNodePorts",
		"iptables-masquerade-bit":           "iptables.masqueradeBit",
		"ipvs-exclude-cidrs":                "ipvs.excludeCIDRs",
		"ipvs-scheduler":                    "ipvs.scheduler",
		"ipvs-strict-arp":                   "ipvs.strictARP",
		"ipvs-tcp-timeout":                  "ipvs.tcpTimeout",
		"ipvs-tcpfin-timeout":               "ipvs.tcpFinTimeout",
		"ipvs-udp-timeout":                  "ipvs.udpTimeout",
		"masquerade-all":                    "iptables.masqueradeAll",
		"metrics-bind-address":              "metricsBindAddress",
		"nodeport-addresses":                "nodePortAddresses",
		"pod-bridge-interface":              "detectLocal.bridgeInterface",
		"pod-interface-name-prefix":         "detectLocal.interfaceNamePrefix",
		"profiling":                         "enableProfiling",
		"proxy-mode":                        "mode",
		flagMinSync:                         "iptables.minSyncPeriod",
		flagIPVSMinSync:                     "ipvs.minSyncPeriod",
	}
}

// otherFlags are kube-proxy's flags whose values do not matter here, and whether they are
// switches, which take no value from the next argument.
func otherFlags() map[string]bool {
	return map[string]bool{
		flagConfig: false, flagHealthzPort: false, flagMetricsPort: false,
		"bind-address-hard-fail": true, "boot-id-file": false, "cleanup": true, "config-sync-period": false,
		"enable-dsr": true, "forward-healthcheck-vip": true, "init-only": true, "iptables-sync-period": false,
		"ipvs-sync-period": false, "kube-api-burst": false, "kube-api-content-type": false, "kube-api-qps": false,
		"kubeconfig": false, "log-flush-frequency": false, "log-json-info-buffer-size": false,
		"log-json-split-stream": true, "log-text-info-buffer-size": false, "log-text-split-stream": true,
		"logging-format": false, "machine-id-file": false, "master": false, "network-name": false,
		"oom-score-adj": false, "proxy-port-range": false, "root-hnsendpoint-name": false,
		"show-hidden-metrics-for-version": false, "source-vip": false, "v": false, "version": true, "vmodule": false,
		"windows-service": true, "write-config-to": false,
	}
}

// withConfig are the flags that kube-proxy uses even with --config. Those for logs do not
// matter here.
func withConfig(name string) bool {
	return name == flagConfig || name == flagHostname || name == "master" || name == "v" || name == "vmodule" || name == "version" ||
		strings.HasPrefix(name, "log")
}

// argument is a flag of a command line.
type argument struct{ name, value string }

// parse splits a command line into flags. problems are arguments that are no flag of
// kube-proxy's, or lack a value.
func parse(args []string) (flags []argument, problems []string) {
	fields, others := flagFields(), otherFlags()
	reference := config{}
	for i := 0; i < len(args); i++ {
		arg := args[i]
		name, isFlag := strings.CutPrefix(arg, "-")
		if arg == "" {
			continue // kube-proxy does so, too
		}
		if !isFlag {
			problems = append(problems, fmt.Sprintf("argument %q: kube-proxy takes only flags", clip(arg)))
			continue
		}
		long := strings.HasPrefix(name, "-")
		name, value, assigned := strings.Cut(strings.TrimPrefix(name, "-"), "=")
		if !long && !assigned && len(name) > 1 && name[0] == 'v' {
			name, value, assigned = "v", name[1:], true // -v2
		}
		name = strings.ReplaceAll(name, "_", "-")
		path, sets := fields[name]
		toggle, known := others[name]
		if !known && !sets || !long && name != "v" {
			problems = append(problems, fmt.Sprintf("%q is no flag of kube-proxy's", clip(strings.SplitN(arg, "=", 2)[0])))
			continue
		}
		if sets {
			field, _ := valueAt(reflect.ValueOf(&reference.KubeProxyConfiguration), path)
			_, toggle = reflect.TypeAssert[bool](deref(field))
		}
		switch {
		case assigned:
		case toggle:
			value = "true"
		case i+1 < len(args):
			i++
			value = args[i]
		default:
			problems = append(problems, fmt.Sprintf("--%s lacks a value", name))
			continue
		}
		flags = append(flags, argument{name, value})
	}
	return flags, problems
}

// deref returns what a pointer points to, or a new zero value.
func deref(v reflect.Value) reflect.Value {
	if v.Kind() != reflect.Pointer {
		return v
	}
	if v.IsNil() {
		return reflect.New(v.Type().Elem()).Elem()
	}
	return v.Elem()
}

// apply sets the fields of flags in a configuration with defaults.
func (c *config) apply(flags []argument) {
	fields := flagFields()
	for _, f := range flags {
		switch f.name {
		case flagHealthzPort:
			c.port(f, "healthzBindAddress", &c.HealthzBindAddress, "0.0.0.0")
			continue
		case flagMetricsPort:
			c.port(f, "metricsBindAddress", &c.MetricsBindAddress, "127.0.0.1")
			continue
		}
		path, sets := fields[f.name]
		if !sets {
			continue
		}
		field, found := valueAt(reflect.ValueOf(&c.KubeProxyConfiguration), path)
		if !found {
			continue
		}
		if err := set(field, f.value, c.flags[path] != ""); err != nil {
			c.lose("settings", "%s: --%s %q: %v", c.owner, f.name, clip(f.value), err)
			continue
		}
		c.flags[path] = f.name
	}
	c.BindAddress = cmp.Or(c.BindAddress, "0.0.0.0")
	for path, address := range map[string]*string{"healthzBindAddress": &c.HealthzBindAddress, "metricsBindAddress": &c.MetricsBindAddress} {
		c.disabled[path] = *address == ""
	}
	c.HealthzBindAddress = withPort(c.HealthzBindAddress, "10256")
	c.MetricsBindAddress = withPort(c.MetricsBindAddress, "10249")
	c.perMode()
}

// port applies a deprecated flag: 0 switches a server off; others matter only without the
// flag for the address.
func (c *config) port(f argument, path string, address *string, host string) {
	number, err := strconv.ParseInt(f.value, 0, 32)
	if err != nil {
		c.lose("settings", "%s: --%s %q: not a port", c.owner, f.name, clip(f.value))
		return
	}
	if _, given := c.flags[path]; given && number != 0 {
		return
	}
	if *address = ""; number != 0 {
		*address = withPort(host, strconv.FormatInt(number, 10))
	}
	c.flags[path] = f.name
}

// perMode moves values of flags that the file has once per mode to the fields of the mode.
func (c *config) perMode() {
	if c.Mode == "ipvs" && c.flags["ipvs.minSyncPeriod"] == "" {
		c.IPVS.MinSyncPeriod = metav1.Duration{Duration: time.Second} // that of mode iptables
	}
	if c.Mode != "nftables" {
		return
	}
	c.NFTables.MasqueradeAll = c.IPTables.MasqueradeAll
	c.NFTables.MinSyncPeriod = c.IPTables.MinSyncPeriod
	for from, to := range map[string]string{"iptables.masqueradeAll": "nftables.masqueradeAll", "iptables.minSyncPeriod": "nftables.minSyncPeriod"} {
		if flag, is := c.flags[from]; is {
			c.flags[to] = flag
		}
	}
}

// set parses the value of a flag into a field. Lists and maps are extended if the flag was
// given before.
func set(field reflect.Value, text string, again bool) error {
	if field.Kind() == reflect.Pointer {
		value := reflect.New(field.Type().Elem())
		if err := set(value.Elem(), text, false); err != nil {
			return err
		}
		field.Set(value)
		return nil
	}
	switch value := field.Addr().Interface().(type) {
	case *bool:
		return parseInto(value, text, strconv.ParseBool, "not a boolean")
	case *int32:
		return parseInto(value, text, func(s string) (int32, error) {
			n, err := strconv.ParseInt(s, 0, 32)
			return int32(n), err
		}, "not a number of 32 bits")
	case *metav1.Duration:
		return parseInto(&value.Duration, text, time.ParseDuration, "not a duration such as 30s")
	case *[]string:
		list, err := csv.NewReader(strings.NewReader(text)).Read()
		if text != "" && err != nil {
			return errors.New("not a list separated by commas")
		}
		if !again {
			*value = nil
		}
		*value = append(*value, list...)
		return nil
	case *map[string]bool:
		if !again || *value == nil {
			*value = map[string]bool{}
		}
		for pair := range strings.SplitSeq(text, ",") {
			if pair == "" {
				continue
			}
			name, on, _ := strings.Cut(pair, "=")
			enabled, err := strconv.ParseBool(strings.TrimSpace(on))
			if err != nil {
				return errors.New("not a list of NAME=true or NAME=false")
			}
			(*value)[strings.TrimSpace(name)] = enabled
		}
		return nil
	}
	field.SetString(text) // strings, and types like them
	return nil
}

func parseInto[T any](into *T, text string, parse func(string) (T, error), problem string) error {
	value, err := parse(strings.TrimSpace(text))
	if err != nil {
		return errors.New(problem)
	}
	*into = value
	return nil
}

// clip shortens a value for a message.
func clip(text string) string {
	const most = 120
	if len(text) > most {
		return text[:most] + "..."
	}
	return text
}
