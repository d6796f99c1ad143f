package kubeproxy

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// withConfiguration is a cluster whose ConfigMap has a configuration.
func withConfiguration(t testing.TB, configuration string) *objects {
	t.Helper()
	o := load(t, "kubeadm-1.31")
	o.configMaps[0].Data["config.conf"] = configuration
	return o
}

// withFlags is a cluster whose DaemonSet has these arguments only.
func withFlags(t testing.TB, args ...string) *objects {
	t.Helper()
	o := load(t, "kubeadm-1.31")
	o.daemonSets[0].Spec.Template.Spec.Containers[0].Command = append([]string{"kube-proxy"}, args...)
	return o
}

const header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// TestUnreadable: each error names the object, and the field or key.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	const key = "ConfigMap kube-system/kube-proxy, key config.conf"
	missing, elsewhere, without := load(t, "kubeadm-1.31"), load(t, "kubeadm-1.31"), load(t, "kubeadm-1.31")
	missing.configMaps = nil
	delete(without.configMaps[0].Data, "config.conf")
	elsewhere.daemonSets[0].Spec.Template.Spec.Containers[0].VolumeMounts = nil
	arguments := load(t, "k3s")
	arguments.nodes[0].Annotations[k3sArguments] = "{"
	for name, tt := range map[string]struct {
		cluster *objects
		want    string
	}{
		"malformed":         {withConfiguration(t, "a: [\n"), key + ": not valid YAML: yaml: line "},
		"expands":           {withConfiguration(t, bomb()), key + ": not valid YAML: yaml: document contains excessive aliasing"},
		"no object":         {withConfiguration(t, "- 1\n"), key + ": not a valid configuration: json: cannot unmarshal array into Go value of type v1alpha1.KubeProxyConfiguration"},
		"empty":             {withConfiguration(t, ""), key + ": apiVersion and kind must be kubeproxy.config.k8s.io/v1alpha1 and KubeProxyConfiguration"},
		"other kind":        {withConfiguration(t, "apiVersion: v1\nkind: Config\n"), key + ": apiVersion and kind must be"},
		"wrong type":        {withConfiguration(t, header+"conntrack: {min: many}\n"), key + ": not a valid configuration: json: cannot unmarshal string into Go struct field KubeProxyConntrackConfiguration.conntrack.min of type int32"},
		"wrong duration":    {withConfiguration(t, header+"iptables: {minSyncPeriod: soon}\n"), key + `: not a valid configuration: time: invalid duration "soon"`},
		"large":             {withConfiguration(t, header+strings.Repeat("#", mostBytes)), key + ": larger than 1048576 bytes"},
		"no ConfigMap":      {missing, "DaemonSet kube-system/kube-proxy: the ConfigMap kube-system/kube-proxy of --config does not exist"},
		"no key":            {without, key + " does not exist, but DaemonSet kube-system/kube-proxy uses it with --config"},
		"file of a node":    {elsewhere, `DaemonSet kube-system/kube-proxy: --config "/var/lib/kube-proxy/config.conf" is not from a ConfigMap, so it cannot be read: use the settings by hand`},
		"arguments":         {arguments, "Node server-1, annotation k3s.io/node-args: not a list of arguments"},
		"too many policies": {differingPods(t), "the kube-proxies of this cluster differ so much that "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Import(t.Context(), tt.cluster, v1alpha1.Audit)
			if _, is := errors.AsType[*InvalidError](err); !is || !strings.HasPrefix(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q, not %q", err, tt.want)
			}
		})
	}
	if _, err := Import(t.Context(), &objects{}, v1alpha1.Audit); !errors.Is(err, errNone) {
		t.Errorf("without kube-proxy: %v", err)
	}
	denied := errors.New("denied")
	if _, err := Import(t.Context(), &objects{denied: denied}, v1alpha1.Audit); !errors.Is(err, denied) {
		t.Errorf("without permission: %v", err)
	}
	disabled := load(t, "k3s")
	disabled.nodes[0].Annotations[k3sArguments] = `["server","--disable-kube-proxy"]`
	if _, err := Import(t.Context(), disabled, v1alpha1.Audit); !errors.Is(err, errNone) {
		t.Errorf("k3s without kube-proxy: %v", err)
	}
}

// bomb is YAML that expands to gigabytes.
func bomb() string {
	text := "a: &a [x, x, x, x, x, x, x, x, x]\n"
	for c := 'b'; c <= 'i'; c++ {
		text += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c, ", c-1), 9), ", "))
	}
	return text
}

// differingPods is a cluster of static pods that all differ.
func differingPods(t testing.TB) *objects {
	o := load(t, "rke2")
	for i := range mostPolicies + 1 {
		pod := *o.pods[0].DeepCopy()
		pod.Name = fmt.Sprintf("kube-proxy-%d", i)
		pod.Spec.NodeName = fmt.Sprintf("node-%d", i)
		pod.Spec.Containers[0].Args = []string{fmt.Sprintf("--conntrack-min=%d", i)}
		o.pods = append(o.pods, pod)
	}
	return o
}

// TestLost: what each comment reports.
func TestLost(t *testing.T) {
	t.Parallel()
	const daemonSet, key = "not carried over: DaemonSet kube-system/kube-proxy: ", "not carried over: ConfigMap kube-system/kube-proxy, key config.conf: "
	for name, tt := range map[string]struct {
		cluster *objects
		want    []string
	}{
		"unknown flag":      {withFlags(t, "--proxymode=ipvs"), []string{daemonSet + `"--proxymode" is no flag of kube-proxy's`}},
		"argument":          {withFlags(t, "--masquerade-all", "false"), []string{daemonSet + `argument "false": kube-proxy takes only flags`}},
		"short flag":        {withFlags(t, "-x"), []string{daemonSet + `"-x" is no flag of kube-proxy's`}},
		"no value":          {withFlags(t, "--proxy-mode"), []string{daemonSet + "--proxy-mode lacks a value"}},
		"wrong number":      {withFlags(t, "--conntrack-min=5000000000"), []string{daemonSet + `--conntrack-min "5000000000": not a number of 32 bits`}},
		"wrong boolean":     {withFlags(t, "--masquerade-all=perhaps"), []string{daemonSet + `--masquerade-all "perhaps": not a boolean`}},
		"wrong duration":    {withFlags(t, "--ipvs-tcp-timeout=5"), []string{daemonSet + `--ipvs-tcp-timeout "5": not a duration such as 30s`}},
		"wrong gates":       {withFlags(t, "--feature-gates=A"), []string{daemonSet + `--feature-gates "A": not a list of NAME=true or NAME=false`}},
		"wrong list":        {withFlags(t, `--nodeport-addresses="`), []string{daemonSet + `--nodeport-addresses "\"": not a list separated by commas`}},
		"wrong port":        {withFlags(t, "--healthz-port=none"), []string{daemonSet + `--healthz-port "none": not a port`}},
		"no health checks":  {withFlags(t, "--healthz-port=0"), []string{daemonSet + `--healthz-port "": managed agents use port 10256`}},
		"no health address": {withFlags(t, "--healthz-bind-address="), []string{daemonSet + `--healthz-bind-address "": managed agents use port 10256`}},
		"mode":              {withFlags(t, "--proxy-mode=kernelspace"), []string{daemonSet + `--proxy-mode "kernelspace": use iptables, ipvs or nftables`}},
		"range":             {withFlags(t, "--cluster-cidr=10.0.0.0"), []string{daemonSet + `--cluster-cidr "10.0.0.0": must be a CIDR`}},
		"two ranges":        {withFlags(t, "--cluster-cidr=10.0.0.0/8,11.0.0.0/8"), []string{daemonSet + `--cluster-cidr "10.0.0.0/8,11.0.0.0/8": must contain at most one CIDR per IP family`}},
		"bridge":            {withFlags(t, "--detect-local-mode=BridgeInterface"), []string{daemonSet + `--detect-local-mode "BridgeInterface": `}},
		"detection":         {withFlags(t, "--detect-local-mode=Magic"), []string{daemonSet + `--detect-local-mode "Magic": `}},
		"many ranges":       {withFlags(t, "--nodeport-addresses="+strings.Repeat("10.0.0.0/8,", 40)+"10.0.0.0/8"), []string{daemonSet + "--nodeport-addresses: 41 ranges, more than 32"}},
		"too many excluded": {withFlags(t, "--proxy-mode=ipvs", "--ipvs-exclude-cidrs="+strings.Repeat("10.0.0.0/8,", 64)+"10.0.0.0/8"), []string{daemonSet + "--ipvs-exclude-cidrs: 65 ranges, more than 64"}},
		"scheduler":         {withFlags(t, "--proxy-mode=ipvs", "--ipvs-scheduler=best"), []string{daemonSet + `--ipvs-scheduler "best": `}},
		"negative":          {withFlags(t, "--conntrack-min=-1"), []string{daemonSet + `--conntrack-min "-1": must not be negative`}},
		"bit":               {withConfiguration(t, header+"iptables: {masqueradeBit: 99}\n"), []string{key + `iptables.masqueradeBit "99": must be 0 to 31`}},
		"bit of nftables":   {withConfiguration(t, header+"mode: nftables\nnftables: {masqueradeBit: -1}\n"), []string{key + `nftables.masqueradeBit "-1": must be 0 to 31`}},
		"unknown field":     {withConfiguration(t, header+"conntrack: {minimum: 1}\n"), []string{key + `unknown field "conntrack.minimum", which kube-proxy ignores`}},
		"other case":        {withConfiguration(t, header+"MODE: ipvs\n"), []string{key + `unknown field "MODE", which kube-proxy ignores`}},
		"short timeout":     {withConfiguration(t, header+"conntrack: {udpTimeout: 500ms}\n"), []string{key + `conntrack.udpTimeout "500ms": shorter than a second`}},
		"long timeout":      {withConfiguration(t, header+"conntrack: {udpTimeout: 1000000h}\n"), []string{key + `conntrack.udpTimeout "1000000h0m0s": too long`}},
		"negative timeout":  {withConfiguration(t, header+"conntrack: {udpTimeout: -1s}\n"), []string{key + `conntrack.udpTimeout "-1s": must not be negative`}},
		"long interval":     {withConfiguration(t, header+"iptables: {minSyncPeriod: 1000h}\n"), []string{key + `iptables.minSyncPeriod "1000h0m0s": longer than 24 days`}},
		"negative interval": {withConfiguration(t, header+"iptables: {minSyncPeriod: -1s}\n"), []string{key + `iptables.minSyncPeriod "-1s": must not be negative`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			result, err := Import(t.Context(), tt.cluster, v1alpha1.Audit)
			if err != nil {
				t.Fatal(err)
			}
			var lost []string
			for _, n := range result.documents[0].notes {
				if n.lost {
					lost = append(lost, n.text)
				}
			}
			if len(lost) != len(tt.want) {
				t.Fatalf("%q, not %q", lost, tt.want)
			}
			for i, want := range tt.want {
				if !strings.HasPrefix(lost[i], want) {
					t.Errorf("%q, not %q", lost[i], want)
				}
			}
		})
	}
}

// TestHostile: values of objects cannot leave a comment, or control the terminal.
func TestHostile(t *testing.T) {
	t.Parallel()
	result, err := Import(t.Context(), withFlags(t, "--x\nspec: {}", "--hostname-override=a\nb\x1b[31m\u202e", "--bind-address=#\r\u2028x"), v1alpha1.Audit)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := result.Write(&out); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(out.String(), "\x1b\u202e\r\u2028") || strings.Contains(out.String(), "\nspec: {}") {
		t.Errorf("printed %q", out.String())
	}
}

// FuzzConfiguration: no configuration or command line makes the import panic, and whatever
// results can be printed.
func FuzzConfiguration(f *testing.F) {
	f.Add(header+"mode: ipvs\n", "--proxy-mode ipvs -v2 --masquerade-all")
	f.Add(bomb(), "--feature-gates=A=true --config")
	o := load(f, "kubeadm-1.31")
	f.Add(o.configMaps[0].Data["config.conf"], "")
	f.Fuzz(func(t *testing.T, configuration, flags string) {
		for _, cluster := range []*objects{withConfiguration(t, configuration), withFlags(t, shellWords(flags)...)} {
			result, err := Import(t.Context(), cluster, v1alpha1.Audit)
			if err != nil {
				continue
			}
			if err := result.Write(&bytes.Buffer{}); err != nil {
				t.Errorf("%q, %q: %v", configuration, flags, err)
			}
		}
	})
}
