package kubeproxy

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestConfigMapAt: how a file of a container is found in a ConfigMap.
func TestConfigMapAt(t *testing.T) {
	t.Parallel()
	named := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
	volumes := []corev1.Volume{
		{Name: "whole", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: named("a")}}},
		{Name: "renamed", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: named("b"), Items: []corev1.KeyToPath{{Key: "conf", Path: "sub/kube-proxy.yaml"}}}}},
		{Name: "projected", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: named("c")}}}}}},
		{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/etc"}}},
	}
	for name, tt := range map[string]struct {
		mounts []corev1.VolumeMount
		file   string
		want   string
	}{
		"whole":          {[]corev1.VolumeMount{{Name: "whole", MountPath: "/etc/kp/"}}, "/etc/kp/config.conf", "a config.conf"},
		"the innermost":  {[]corev1.VolumeMount{{Name: "whole", MountPath: "/etc/kp"}, {Name: "host", MountPath: "/etc"}}, "/etc/kp/x", "a x"},
		"hidden":         {[]corev1.VolumeMount{{Name: "host", MountPath: "/etc/kp"}, {Name: "whole", MountPath: "/etc"}}, "/etc/kp/x", ""},
		"renamed":        {[]corev1.VolumeMount{{Name: "renamed", MountPath: "/etc/kp"}}, "/etc/kp/sub/../sub/kube-proxy.yaml", "b conf"},
		"not in items":   {[]corev1.VolumeMount{{Name: "renamed", MountPath: "/etc/kp"}}, "/etc/kp/conf", ""},
		"subPath":        {[]corev1.VolumeMount{{Name: "whole", MountPath: "/etc/kp.conf", SubPath: "config"}}, "/etc/kp.conf", "a config"},
		"projected":      {[]corev1.VolumeMount{{Name: "projected", MountPath: "/etc/kp"}}, "/etc/kp/config", "c config"},
		"similar prefix": {[]corev1.VolumeMount{{Name: "whole", MountPath: "/etc/k"}}, "/etc/kp/config", ""},
		"no volume":      {[]corev1.VolumeMount{{Name: "other", MountPath: "/etc/kp"}}, "/etc/kp/config", ""},
	} {
		object, key, found := configMapAt(&corev1.PodSpec{Volumes: volumes}, &corev1.Container{VolumeMounts: tt.mounts}, tt.file)
		if got := strings.TrimSpace(object + " " + key); found != (tt.want != "") || found && got != tt.want {
			t.Errorf("%s: %q, %v, not %q", name, got, found, tt.want)
		}
	}
}

// TestCommandOf: how the arguments of kube-proxy are found in a container.
func TestCommandOf(t *testing.T) {
	t.Parallel()
	env := []corev1.EnvVar{
		{Name: "MODE", Value: "ipvs"},
		{Name: "NODE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}},
		{Name: "IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.hostIP"}}},
	}
	for name, tt := range map[string]struct {
		container corev1.Container
		want      []string // nil: not kube-proxy
	}{
		"command":      {corev1.Container{Command: []string{"/usr/local/bin/kube-proxy", "--v=2"}, Args: []string{"--cleanup"}}, []string{"--v=2", "--cleanup"}},
		"no arguments": {corev1.Container{Command: []string{"kube-proxy"}}, []string{}},
		"image":        {corev1.Container{Name: "kube-proxy", Args: []string{"--v=2"}}, []string{"--v=2"}},
		"wrapper":      {corev1.Container{Command: []string{"/go-runner", "--log-file=/x", "kube-proxy", "--v=2"}}, []string{"--v=2"}},
		"variables": {corev1.Container{Command: []string{"kube-proxy", "--proxy-mode=$(MODE)", "--hostname-override=$(NODE)", "$(IP)", "$$(MODE)", "$(OTHER)"}, Env: env},
			[]string{"--proxy-mode=ipvs", "--hostname-override=" + nodeName, "$(IP)", "$(MODE)", "$(OTHER)"}},
		"script": {corev1.Container{Command: []string{"/bin/sh", "-c", `x=1 exec kube-proxy --a='b c' --d="e" \
			--f 2>&1 | tee log`}}, []string{"--a=b c", "--d=e", "--f"}},
		"other":          {corev1.Container{Name: "exporter", Command: []string{"exporter", "--of=kube-proxy"}}, nil},
		"other by image": {corev1.Container{Name: "exporter"}, nil},
	} {
		_, got, is := commandOf(&corev1.PodSpec{Containers: []corev1.Container{{Name: "sidecar"}, tt.container}})
		if is != (tt.want != nil) || !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, %v, not %q", name, got, is, tt.want)
		}
	}
}

// TestSelectors: a DaemonSet's nodes as selectors of policies.
func TestSelectors(t *testing.T) {
	t.Parallel()
	require := func(terms ...corev1.NodeSelectorTerm) corev1.PodSpec {
		return corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}}
	}
	expression := func(key string, operator corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: operator, Values: values}}}
	}
	for _, windows := range []corev1.PodSpec{
		{NodeSelector: map[string]string{corev1.LabelOSStable: "windows"}}, {OS: &corev1.PodOS{Name: corev1.Windows}},
		require(expression(corev1.LabelOSStable, corev1.NodeSelectorOpIn, "windows")),
	} {
		if !onWindows(&windows) {
			t.Errorf("%v is on Windows", windows)
		}
	}
	for want, spec := range map[string]corev1.PodSpec{
		`its node affinity has operator "Lt"`:       require(expression("cores", corev1.NodeSelectorOpLt, "4")),
		"its node affinity has matchFields":         require(corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name"}}}),
		"its node affinity has more than 32 values": require(expression("a", corev1.NodeSelectorOpIn, slices.Repeat([]string{"b"}, 33)...)),
	} {
		if _, err := selectors(&spec); err == nil || err.Error() != want || onWindows(&spec) {
			t.Errorf("%v, not %q", err, want)
		}
	}
	got := named(slices.Repeat([]string{"node"}, 2*mostValues+1))
	if len(got) != 3 || len(got[2].MatchExpressions[0].Values) != 1 {
		t.Errorf("%v", got)
	}
}

// TestModes: settings of another mode than kube-proxy's do not matter, as the command line and
// the file set them.
func TestModes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		cluster  *objects
		interval int32
		bit      int32
		all      v1alpha1.Toggle
		address  v1alpha1.NodePortAddressMode
	}{
		"iptables by file":  {withConfiguration(t, header+"iptables: {minSyncPeriod: 2s, masqueradeBit: 3}\nnftables: {masqueradeAll: true, minSyncPeriod: 9s, masqueradeBit: 99}\nipvs: {tcpTimeout: 1ms, excludeCIDRs: [x]}\n"), 2000, 3, v1alpha1.Disabled, v1alpha1.NodePortsAll},
		"nftables by file":  {withConfiguration(t, header+"mode: nftables\niptables: {masqueradeAll: true, masqueradeBit: 99}\nnftables: {minSyncPeriod: 9s, masqueradeBit: 4}\n"), 9000, 4, v1alpha1.Disabled, v1alpha1.NodePortsPrimary},
		"ipvs by file":      {withConfiguration(t, header+"mode: ipvs\niptables: {masqueradeAll: true, minSyncPeriod: 2s}\n"), 0, 14, v1alpha1.Enabled, v1alpha1.NodePortsAll},
		"iptables by flags": {withFlags(t, "--masquerade-all", "--iptables-min-sync-period=2s", "--ipvs-min-sync-period=3s", "--iptables_masquerade_bit=0x5"), 2000, 5, v1alpha1.Enabled, v1alpha1.NodePortsAll},
		"nftables by flags": {withFlags(t, "--proxy-mode", "nftables", "--masquerade-all=true", "--iptables-min-sync-period=2s", "--iptables-masquerade-bit=5"), 2000, 14, v1alpha1.Enabled, v1alpha1.NodePortsPrimary},
		"ipvs by flags":     {withFlags(t, "--proxy-mode=ipvs", "--iptables-min-sync-period=2s"), 1000, 14, v1alpha1.Disabled, v1alpha1.NodePortsAll},
		"ipvs period":       {withFlags(t, "--proxy-mode=ipvs", "--ipvs-min-sync-period=3s"), 3000, 14, v1alpha1.Disabled, v1alpha1.NodePortsAll},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			finder := &finder{Cluster: tt.cluster, maps: map[string]*corev1.ConfigMap{}}
			pools, err := finder.pools(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			s := pools[0].settings
			if *s.Sync.MinIntervalMilliseconds != tt.interval || *s.Masquerade.Bit != tt.bit || *s.Masquerade.All != tt.all || *s.NodePorts.AddressMode != tt.address {
				t.Errorf("interval %d, bit %d, all %s, addresses %s", *s.Sync.MinIntervalMilliseconds, *s.Masquerade.Bit, *s.Masquerade.All, *s.NodePorts.AddressMode)
			}
			for _, n := range pools[0].config.notes {
				if n.lost {
					t.Errorf("lost: %s", n.text)
				}
			}
		})
	}
}

// TestMergedPools: DaemonSets with the same settings need no policy, and what only one of them
// loses is still reported.
func TestMergedPools(t *testing.T) {
	t.Parallel()
	o := load(t, "kubeadm-1.31")
	other := *o.daemonSets[0].DeepCopy()
	other.Name, other.Status = "kube-proxy-2", appsv1.DaemonSetStatus{DesiredNumberScheduled: 1}
	other.Spec.Template.Spec.Containers[0].Command = append(other.Spec.Template.Spec.Containers[0].Command, "--unknown")
	o.daemonSets = append([]appsv1.DaemonSet{other}, o.daemonSets...)
	result, err := Import(t.Context(), o, v1alpha1.Audit)
	if err != nil || len(result.documents) != 1 || result.Lost != 1 {
		t.Errorf("%+v, %v", result, err)
	}
}

// TestCleared: a policy cannot empty a list of NodeProxy, which is reported.
func TestCleared(t *testing.T) {
	t.Parallel()
	o := withFlags(t, "--proxy-mode=ipvs", "--ipvs-exclude-cidrs=192.0.2.0/24")
	other := *o.daemonSets[0].DeepCopy()
	other.Name, other.Status = "kube-proxy-2", appsv1.DaemonSetStatus{DesiredNumberScheduled: 1}
	other.Spec.Template.Spec.Containers[0].Command = []string{"kube-proxy", "--proxy-mode=ipvs"}
	o.daemonSets = append(o.daemonSets, other)
	result, err := Import(t.Context(), o, v1alpha1.Audit)
	if err != nil || result.Lost != 1 {
		t.Fatalf("%+v, %v", result, err)
	}
	notes := result.documents[0].notes
	if last := notes[len(notes)-1]; last.text != "not carried over: DaemonSet kube-system/kube-proxy-2: a policy cannot empty ipvs.excludeCIDRs of NodeProxy" {
		t.Errorf("%q", last.text)
	}
}
