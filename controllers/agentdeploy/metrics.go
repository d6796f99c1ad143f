package agentdeploy

import appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"

// everyAddress makes the agents serve the kubelet and Prometheus on every address of their node.
// The port is that of the probes in the manifest.
const everyAddress = "--health-probe-bind-address=:19256"

// ExposeMetrics changes a DaemonSet so that its agents serve /metrics on every address of their
// node, not only on 127.0.0.1.
func ExposeMetrics(agents *appsv1ac.DaemonSetApplyConfiguration) error {
	agent, err := container(agents)
	if err != nil {
		return err
	}
	agent.Args = append(agent.Args, everyAddress)
	return nil
}
