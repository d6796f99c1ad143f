package agentdeploy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	agentmanifest "github.com/nodeproxy-io/nodeproxy/config/agent"
)

// Name is the name of the DaemonSet, of its pods' service account, and the value of their label
// LabelName.
const (
	Name      = "nodeproxy-agent"
	LabelName = "app.kubernetes.io/name"
)

// Names inside the manifest.
const (
	agentContainer = "agent"
	stateVolume    = "state"
	logLevelFlag   = "--v="
	jsonFlag       = "--logging-format=json"
	// probesPort is the only port that kube-proxy does not use.
	probesPort   = "probes"
	everyAddress = "--health-probe-bind-address=:19256" // at the port of the probes
)

// Options are what the controller runs the agents with.
type Options struct {
	Namespace string
	// Image is the agents' image unless NodeProxy names one. Empty: it must.
	Image string
	// ExposeMetrics has the agents serve /metrics on every address of their node, not only on
	// 127.0.0.1.
	ExposeMetrics bool
	// ShareProxyPorts has the pods not reserve the ports that kube-proxy uses as well, so that they
	// can run on nodes with a kube-proxy that does.
	ShareProxyPorts bool
}

// ErrNoImage is the error of DaemonSet if no image is specified.
var ErrNoImage = errors.New("no agent image is configured")

// Managed reports whether the controller runs the agents.
func Managed(np *v1alpha1.NodeProxy) bool {
	agent := np.Spec.Agent
	return agent != nil && agent.Management != nil && *agent.Management == v1alpha1.AgentManaged
}

// DaemonSet returns what to apply: the embedded manifest, changed by the settings and options. Without
// an image in either it fails with ErrNoImage.
func DaemonSet(settings *v1alpha1.AgentSettings, o Options) (*appsv1ac.DaemonSetApplyConfiguration, error) {
	if settings == nil {
		settings = &v1alpha1.AgentSettings{}
	}
	image := o.Image
	if settings.Image != nil {
		image = cmp.Or(*settings.Image, o.Image)
	}
	if image == "" {
		return nil, ErrNoImage
	}
	out := &appsv1ac.DaemonSetApplyConfiguration{}
	if err := yaml.UnmarshalStrict([]byte(agentmanifest.DaemonSet()), out); err != nil {
		return nil, fmt.Errorf("read the manifest of the agents: %w", err)
	}
	out.WithNamespace(o.Namespace)
	pod := out.Spec.Template.Spec
	agent, err := named(pod.Containers, agentContainer, func(c *corev1ac.ContainerApplyConfiguration) *string { return c.Name })
	if err != nil {
		return nil, err
	}
	agent.WithImage(image)
	if settings.Resources != nil {
		agent.Resources = &corev1ac.ResourceRequirementsApplyConfiguration{}
		if err := Convert(settings.Resources, agent.Resources); err != nil {
			return nil, err
		}
	}
	maps.Copy(pod.NodeSelector, settings.NodeSelector)
	if settings.Tolerations != nil {
		pod.Tolerations = make([]corev1ac.TolerationApplyConfiguration, len(settings.Tolerations))
		if err := Convert(settings.Tolerations, &pod.Tolerations); err != nil {
			return nil, err
		}
	}
	for _, secret := range settings.ImagePullSecrets {
		pod.WithImagePullSecrets(corev1ac.LocalObjectReference().WithName(secret.Name))
	}
	if settings.PriorityClassName != nil {
		pod.WithPriorityClassName(*settings.PriorityClassName)
	}
	if settings.LogLevel != nil {
		i := slices.IndexFunc(agent.Args, func(arg string) bool { return strings.HasPrefix(arg, logLevelFlag) })
		if i < 0 {
			return nil, fmt.Errorf("the manifest of the agents has no argument %s", logLevelFlag)
		}
		agent.Args[i] = fmt.Sprint(logLevelFlag, *settings.LogLevel)
	}
	if settings.LogFormat != nil && *settings.LogFormat == v1alpha1.LogJSON {
		agent.WithArgs(jsonFlag)
	}
	if settings.StateDir != nil {
		state, err := named(pod.Volumes, stateVolume, func(v *corev1ac.VolumeApplyConfiguration) *string { return v.Name })
		if err != nil {
			return nil, err
		}
		// Only the directory on the node changes: its path in a container does not matter, and
		// cannot collide with another mount.
		state.HostPath.WithPath(*settings.StateDir)
	}
	if o.ExposeMetrics {
		agent.WithArgs(everyAddress)
	}
	if o.ShareProxyPorts {
		probes, err := named(agent.Ports, probesPort, func(p *corev1ac.ContainerPortApplyConfiguration) *string { return p.Name })
		if err != nil {
			return nil, err
		}
		agent.Ports = []corev1ac.ContainerPortApplyConfiguration{*probes}
	}
	return out, nil
}

func named[T any](items []T, name string, nameOf func(*T) *string) (*T, error) {
	for i := range items {
		if n := nameOf(&items[i]); n != nil && *n == name {
			return &items[i], nil
		}
	}
	return nil, fmt.Errorf("the manifest of the agents has no %q", name)
}

// Convert turns an object into its apply configuration, or back: both have the same form in JSON.
func Convert(from, into any) error {
	text, err := json.Marshal(from)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return fmt.Errorf("convert %T: %w", from, err)
	}
	return nil
}
