package agentdeploy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/yaml"

	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	agentmanifest "github.com/nodeproxy-io/nodeproxy/config/agent"
)

// Name is the name of the DaemonSet, of its pods' label app.kubernetes.io/name and of their service
// account.
const Name = "nodeproxy-agent"

// LabelName is the label of the agents' pods.
const LabelName = "app.kubernetes.io/name"

// Names inside the manifest.
const (
	agentContainer = "agent"
	stateVolume    = "state"
	logLevelFlag   = "--v="
)

// ErrNoImage is the error of DaemonSet if no image is specified.
var ErrNoImage = errors.New("there is no image for the agents: set spec.agent.image, or RELATED_IMAGE_AGENT in the environment of the controller")

// Managed reports whether the controller runs the agents.
func Managed(np *v1alpha1.NodeProxy) bool {
	agent := np.Spec.Agent
	return agent != nil && agent.Management != nil && *agent.Management == v1alpha1.AgentManaged
}

// DaemonSet returns what to apply in a namespace: the embedded manifest, changed by the settings.
// The image is that of the settings, else the default one; without either it fails with ErrNoImage.
func DaemonSet(settings *v1alpha1.AgentSettings, namespace, defaultImage string) (*appsv1ac.DaemonSetApplyConfiguration, error) {
	if settings == nil {
		settings = &v1alpha1.AgentSettings{}
	}
	image := defaultImage
	if settings.Image != nil {
		image = cmp.Or(*settings.Image, defaultImage)
	}
	if image == "" {
		return nil, ErrNoImage
	}
	out := &appsv1ac.DaemonSetApplyConfiguration{}
	if err := yaml.UnmarshalStrict([]byte(agentmanifest.DaemonSet()), out); err != nil {
		return nil, fmt.Errorf("read the manifest of the agents: %w", err)
	}
	out.WithNamespace(namespace)
	pod := out.Spec.Template.Spec
	agent, err := container(out)
	if err != nil {
		return nil, err
	}
	agent.WithImage(image)
	if settings.Resources != nil {
		agent.Resources = &corev1ac.ResourceRequirementsApplyConfiguration{}
		if err := convert(settings.Resources, agent.Resources); err != nil {
			return nil, err
		}
	}
	maps.Copy(pod.NodeSelector, settings.NodeSelector)
	if settings.Tolerations != nil {
		pod.Tolerations = make([]corev1ac.TolerationApplyConfiguration, len(settings.Tolerations))
		if err := convert(settings.Tolerations, &pod.Tolerations); err != nil {
			return nil, err
		}
	}
	if settings.LogLevel != nil {
		i := slices.IndexFunc(agent.Args, func(arg string) bool { return strings.HasPrefix(arg, logLevelFlag) })
		if i < 0 {
			return nil, fmt.Errorf("the manifest of the agents has no argument %s", logLevelFlag)
		}
		agent.Args[i] = fmt.Sprint(logLevelFlag, *settings.LogLevel)
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
	return out, nil
}

// container returns the agent's container.
func container(agents *appsv1ac.DaemonSetApplyConfiguration) (*corev1ac.ContainerApplyConfiguration, error) {
	return named(agents.Spec.Template.Spec.Containers, agentContainer, func(c *corev1ac.ContainerApplyConfiguration) *string { return c.Name })
}

// named returns the item of that name.
func named[T any](items []T, name string, nameOf func(*T) *string) (*T, error) {
	for i := range items {
		if n := nameOf(&items[i]); n != nil && *n == name {
			return &items[i], nil
		}
	}
	return nil, fmt.Errorf("the manifest of the agents has no %q", name)
}

// convert turns an object into its apply configuration: both have the same form in JSON.
func convert(from, into any) error {
	text, err := json.Marshal(from)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return fmt.Errorf("convert %T: %w", from, err)
	}
	return nil
}
