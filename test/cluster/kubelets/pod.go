package kubelets

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// Pod returns the network namespace of a pod with a running container as a
// place: what is dialed from it is dialed by the pod. Place.Release gives it back.
func (c *Cluster) Pod(ctx context.Context, namespace, name string) (*cluster.Place, error) {
	pid, err := c.PIDOf(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return c.PlaceOf(name, pid)
}

// PIDOf returns a process of a pod's first running container, by its number on
// this machine.
func (c *Cluster) PIDOf(ctx context.Context, namespace, name string) (int, error) {
	pod := &corev1.Pod{}
	if err := c.Client().Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, pod); err != nil {
		return 0, fmt.Errorf("finding a process of pod %s: %w", name, err)
	}
	for _, status := range pod.Status.ContainerStatuses {
		_, id, _ := strings.Cut(status.ContainerID, "://")
		if status.State.Running == nil || id == "" {
			continue
		}
		pid, err := c.processOf(pod.Spec.NodeName, id)
		if err != nil {
			return 0, fmt.Errorf("finding a process of pod %s: %w", name, err)
		}
		return pid, nil
	}
	return 0, fmt.Errorf("finding a process of pod %s: none of its containers runs", name)
}

// processOf finds a process of a container by its control group.
func (c *Cluster) processOf(node, container string) (pid int, err error) {
	for _, n := range c.Nodes() {
		if n.Name() != node {
			continue
		}
		for _, hierarchy := range []string{"", "*"} { // of version 2, and of version 1
			lists, err := filepath.Glob(filepath.Join("/sys/fs/cgroup", hierarchy, n.Cgroup(), "k8s.io", container, "cgroup.procs"))
			if err != nil {
				return 0, err
			}
			for _, list := range lists {
				text, err := os.ReadFile(list)
				if err != nil {
					continue // it ended just now
				}
				if words := strings.Fields(string(text)); len(words) > 0 {
					return strconv.Atoi(words[0])
				}
			}
		}
		return 0, fmt.Errorf("no process of container %s is found on %s", container, node)
	}
	return 0, errors.New("its node is not of this cluster")
}
