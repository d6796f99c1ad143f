package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/nodeproxy-io/nodeproxy/test/cluster/binaries"
)

// startProgram starts one program of the control plane beside those that run.
func (c *Cluster) startProgram(program binaries.Program) error {
	var args []string
	switch program {
	case binaries.Etcd:
		args = c.etcdArgs()
	case binaries.APIServer:
		inside, _, _ := net.ParseCIDR(wireAddress)
		args = append(c.apiServerArgs(inside.String()), c.options.APIServerArgs...)
	case binaries.ControllerManager:
		config, err := c.KubeconfigFor("controller-manager", "system:kube-controller-manager")
		if err != nil {
			return err
		}
		args = c.managerArgs(config)
	case binaries.Scheduler:
		config, err := c.KubeconfigFor("scheduler", "system:kube-scheduler")
		if err != nil {
			return err
		}
		args = c.schedulerArgs(config)
	default:
		return fmt.Errorf("%s is no program of the control plane", program)
	}
	process, err := c.control.Start(Command{Path: filepath.Join(c.bin, string(program)), Args: args})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.programs[program] = process
	return nil
}

// running returns the programs of the control plane.
func (c *Cluster) running() map[binaries.Program]*Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.programs)
}

// Program returns a program of the control plane, nil unless it runs.
func (c *Cluster) Program(program binaries.Program) *Process { return c.running()[program] }

// KillProgram kills a program of the control plane: binaries.APIServer and all
// clients lose their server at once. StartProgram starts it again.
func (c *Cluster) KillProgram(program binaries.Program) error {
	c.mu.Lock()
	process := c.programs[program]
	delete(c.programs, program)
	c.mu.Unlock()
	if process == nil {
		return fmt.Errorf("%s does not run", program)
	}
	return process.Kill()
}

// StartProgram starts a program of the control plane that was killed, with the
// data it had, and waits until the API server is ready.
func (c *Cluster) StartProgram(ctx context.Context, program binaries.Program) error {
	if c.Program(program) != nil {
		return fmt.Errorf("%s runs already", program)
	}
	if err := c.startProgram(program); err != nil {
		return err
	}
	return c.waitReady(ctx)
}

// note remembers a pod that runs on the node.
func (n *Node) note(pod *Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.running = append(n.running, pod)
}

func (n *Node) unnote(pod *Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.running = slices.DeleteFunc(n.running, func(p *Pod) bool { return p == pod })
}

// Pods returns the pods that run on the node, in the order of their start.
func (n *Node) Pods() []*Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.running)
}

// Reboot does to the node what a reboot does: all its processes end, those of
// its pods too, and it gets a new network namespace, with the same addresses but
// without rules, flows or pods. The Node and Pod objects stay as they are. The
// node can be used as before; its pods can only be deleted, see Pod.Delete.
func (n *Node) Reboot(ctx context.Context) error {
	if err := n.reboot(ctx); err != nil {
		return fmt.Errorf("rebooting %s: %w", n.name, err)
	}
	return nil
}

func (n *Node) reboot(ctx context.Context) error {
	for _, pod := range n.Pods() {
		if err := pod.server.Kill(); err != nil {
			return err
		}
	}
	if err := killInside(ctx, []string{filepath.Join(netnsRoot, n.netns)}); err != nil {
		return err
	}
	card, err := n.unplug()
	if err != nil {
		return err
	}
	if err := n.renew(); err != nil {
		return err
	}
	if err := n.buildNetwork(); err != nil {
		return err
	}
	// A machine keeps its network card, so that its neighbors find it at once.
	return n.links(func(h *netlink.Handle) error {
		link, err := h.LinkByName("eth0")
		if err != nil {
			return err
		}
		return h.LinkSetHardwareAddr(link, card)
	})
}

// unplug removes the node's link to the wire and returns the link address of
// the node's end. The old namespace may live on as long as a socket in it does.
func (n *Node) unplug() (card net.HardwareAddr, err error) {
	err = n.links(func(h *netlink.Handle) error {
		link, err := h.LinkByName("eth0")
		if err != nil {
			return err
		}
		card = link.Attrs().HardwareAddr
		return h.LinkDel(link)
	})
	return card, err
}

// renew gives the place a new network namespace of the same name.
func (p *Place) renew() error {
	p.space.close()
	if err := deleteNamespace(p.netns); err != nil {
		return err
	}
	err := p.cluster.make(func() error {
		return inThread(func() error {
			return returning(func() error {
				handle, err := newNamespace(p.netns)
				if err != nil {
					return err
				}
				p.space.open(handle)
				return nil
			})
		})
	})
	if err != nil {
		return err
	}
	return errors.Join(p.setSysctls(ipv6Sysctls), p.links(func(h *netlink.Handle) error { return setUp(h, "lo") }))
}
