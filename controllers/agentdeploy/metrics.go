package agentdeploy

import appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"

// everyAddress has the agents answer the kubelet and Prometheus on every address
// of their node. The port is that of the probes in the manifest.
const everyAddress = "--health-probe-bind-address=:19256"

// ExposeMetrics changes a DaemonSet so that its agents answer /metrics on every
// address of their node, and not on 127.0.0.1 alone.
func ExposeMetrics(agents *appsv1ac.DaemonSetApplyConfiguration) error {
	agent, err := container(agents)
	if err != nil {
		return err
	}
	agent.Args = append(agent.Args, everyAddress)
	return nil
}
