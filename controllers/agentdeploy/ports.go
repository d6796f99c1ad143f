package agentdeploy

import (
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
)

// probesPort is the name of the one port in the manifest that kube-proxy does not use.
const probesPort = "probes"

// ShareProxyPorts changes a DaemonSet so that its pods do not reserve kube-proxy's ports, and can
// run on nodes with a kube-proxy that does.
func ShareProxyPorts(agents *appsv1ac.DaemonSetApplyConfiguration) error {
	agent, err := container(agents)
	if err != nil {
		return err
	}
	probes, err := named(agent.Ports, probesPort, func(p *corev1ac.ContainerPortApplyConfiguration) *string { return p.Name })
	if err != nil {
		return err
	}
	agent.Ports = []corev1ac.ContainerPortApplyConfiguration{*probes}
	return nil
}
