package agentdeploy_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	agentmanifest "github.com/nodeproxy-io/nodeproxy/config/agent"
	"github.com/nodeproxy-io/nodeproxy/controllers/agentdeploy"
)

// manifest is the embedded DaemonSet.
func manifest(t *testing.T) *appsv1.DaemonSet {
	t.Helper()
	out := &appsv1.DaemonSet{}
	if err := yaml.UnmarshalStrict([]byte(agentmanifest.DaemonSet()), out); err != nil {
		t.Fatal(err)
	}
	return out
}

// built is the DaemonSet for settings, as the API server would read it.
func built(t *testing.T, settings *v1alpha1.AgentSettings) *appsv1.DaemonSet {
	t.Helper()
	apply, err := agentdeploy.DaemonSet(settings, agentdeploy.Options{Namespace: "elsewhere", Image: "example.com/agent:v1"})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(apply)
	if err != nil {
		t.Fatal(err)
	}
	out := &appsv1.DaemonSet{}
	if err := yaml.UnmarshalStrict(text, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// Each setting changes what it is for, and nothing else of the manifest.
func TestDaemonSet(t *testing.T) {
	agent := func(d *appsv1.DaemonSet) *corev1.Container { return &d.Spec.Template.Spec.Containers[0] }
	for name, tt := range map[string]struct {
		settings *v1alpha1.AgentSettings
		change   func(*appsv1.DaemonSet)
	}{
		"none":        {nil, func(*appsv1.DaemonSet) {}},
		"empty":       {&v1alpha1.AgentSettings{}, func(*appsv1.DaemonSet) {}},
		"empty image": {&v1alpha1.AgentSettings{Image: new("")}, func(*appsv1.DaemonSet) {}},
		"image": {&v1alpha1.AgentSettings{Image: new("example.com/agent@sha256:abc")}, func(d *appsv1.DaemonSet) {
			agent(d).Image = "example.com/agent@sha256:abc"
		}},
		"resources": {
			&v1alpha1.AgentSettings{Resources: &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}}},
			func(d *appsv1.DaemonSet) {
				agent(d).Resources = corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}}
			},
		},
		"nodeSelector": {
			&v1alpha1.AgentSettings{NodeSelector: map[string]string{"pool": "edge"}},
			func(d *appsv1.DaemonSet) {
				d.Spec.Template.Spec.NodeSelector = map[string]string{"kubernetes.io/os": "linux", "pool": "edge"}
			},
		},
		"tolerations": {
			&v1alpha1.AgentSettings{Tolerations: []corev1.Toleration{{Key: "pool", Value: "edge", TolerationSeconds: new(int64(3))}}},
			func(d *appsv1.DaemonSet) {
				d.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: "pool", Value: "edge", TolerationSeconds: new(int64(3))}}
			},
		},
		"no tolerations": {
			&v1alpha1.AgentSettings{Tolerations: []corev1.Toleration{}},
			func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.Tolerations = nil },
		},
		"imagePullSecrets": {
			&v1alpha1.AgentSettings{ImagePullSecrets: []corev1.LocalObjectReference{{Name: "a"}, {Name: "b"}}},
			func(d *appsv1.DaemonSet) {
				d.Spec.Template.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "a"}, {Name: "b"}}
			},
		},
		"priorityClassName": {&v1alpha1.AgentSettings{PriorityClassName: new("high")}, func(d *appsv1.DaemonSet) {
			d.Spec.Template.Spec.PriorityClassName = "high"
		}},
		"logLevel": {&v1alpha1.AgentSettings{LogLevel: new(int32(4))}, func(d *appsv1.DaemonSet) {
			agent(d).Args[5] = "--v=4"
		}},
		"logFormat": {&v1alpha1.AgentSettings{LogFormat: new(v1alpha1.LogJSON)}, func(d *appsv1.DaemonSet) {
			agent(d).Args = append(agent(d).Args, "--logging-format=json")
		}},
		"stateDir": {&v1alpha1.AgentSettings{StateDir: new("/opt/state")}, func(d *appsv1.DaemonSet) {
			d.Spec.Template.Spec.Volumes[0].HostPath.Path = "/opt/state"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			want := manifest(t)
			want.Namespace = "elsewhere"
			agent(want).Image = "example.com/agent:v1"
			tt.change(want)
			if got := built(t, tt.settings); !equality.Semantic.DeepEqual(want, got) {
				t.Errorf("(-want +got):\n%s", cmp.Diff(want, got))
			}
		})
	}
}

func TestNoImage(t *testing.T) {
	if _, err := agentdeploy.DaemonSet(&v1alpha1.AgentSettings{}, agentdeploy.Options{}); !errors.Is(err, agentdeploy.ErrNoImage) {
		t.Errorf("got %v", err)
	}
	if _, err := agentdeploy.DaemonSet(&v1alpha1.AgentSettings{Image: new("i")}, agentdeploy.Options{}); err != nil {
		t.Error(err)
	}
}

// Whatever else changes in the manifest, these make an agent that works on a
// cluster where nothing proxies, and that may do no more than it needs.
func TestManifest(t *testing.T) {
	d := manifest(t)
	pod := d.Spec.Template.Spec
	agent := pod.Containers[0]
	for what, right := range map[string]bool{
		"the name":                     d.Name == agentdeploy.Name && d.Spec.Template.Labels[agentdeploy.LabelName] == agentdeploy.Name,
		"its network is the node's":    pod.HostNetwork && !pod.HostPID && !pod.HostIPC,
		"no DNS of the cluster":        pod.DNSPolicy == corev1.DNSDefault,
		"every taint is tolerated":     equality.Semantic.DeepEqual(pod.Tolerations, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}),
		"the nodes' priority":          pod.PriorityClassName == "system-node-critical",
		"capabilities":                 cmp.Equal(agent.SecurityContext.Capabilities, &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN", "NET_RAW"}}),
		"not privileged":               !*agent.SecurityContext.Privileged && !*agent.SecurityContext.AllowPrivilegeEscalation,
		"read-only root":               *agent.SecurityContext.ReadOnlyRootFilesystem,
		"one container":                len(pod.Containers) == 1 && len(pod.InitContainers) == 0,
		"the log shows why it ended":   agent.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError,
		"probes by loopback":           agent.ReadinessProbe.HTTPGet.Host == "127.0.0.1" && agent.LivenessProbe.HTTPGet.Host == "127.0.0.1",
		"its ports are reserved":       reserves(agent, 10249, 10256, 19256),
		"the update's pace is left":    d.Spec.UpdateStrategy.RollingUpdate == nil,
		"the ConfigMap is not needed":  *pod.Volumes[len(pod.Volumes)-1].ConfigMap.Optional && pod.Volumes[len(pod.Volumes)-1].ConfigMap.Name == agentdeploy.APIServersName,
		"the ConfigMap is not subPath": agent.VolumeMounts[len(agent.VolumeMounts)-1].SubPath == "",
	} {
		if !right {
			t.Errorf("violated: %s", what)
		}
	}
}

// reserves reports whether a container in the node's network excludes pods with these
// hostPorts, and no others.
func reserves(c corev1.Container, ports ...int32) bool {
	var got []int32
	for _, p := range c.Ports {
		if p.HostPort != p.ContainerPort || p.HostIP != "" || p.Protocol != corev1.ProtocolTCP {
			return false
		}
		got = append(got, p.HostPort)
	}
	return slices.Equal(got, ports)
}

func TestShareProxyPorts(t *testing.T) {
	agents, err := agentdeploy.DaemonSet(nil, agentdeploy.Options{Image: "i", ShareProxyPorts: true})
	if err != nil {
		t.Fatal(err)
	}
	ports := agents.Spec.Template.Spec.Containers[0].Ports
	if len(ports) != 1 || *ports[0].HostPort != 19256 {
		t.Errorf("ports %+v", ports)
	}
}

func TestExposeMetrics(t *testing.T) {
	container := func(o agentdeploy.Options) *corev1ac.ContainerApplyConfiguration {
		t.Helper()
		agents, err := agentdeploy.DaemonSet(nil, o)
		if err != nil {
			t.Fatal(err)
		}
		return &agents.Spec.Template.Spec.Containers[0]
	}
	before, after := container(agentdeploy.Options{Image: "i"}), container(agentdeploy.Options{Image: "i", ExposeMetrics: true})
	// The port that the probes in the manifest use.
	want := fmt.Sprintf("--health-probe-bind-address=:%d", after.ReadinessProbe.HTTPGet.Port.IntValue())
	if diff := cmp.Diff(append(before.Args, want), after.Args); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
