package main

import (
	"context"
	_ "embed" // for the objects of the demo
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
	"github.com/nodeproxy-io/nodeproxy/test/ipvskernel"
)

const namespace = "shop"

//go:embed nodeproxy.yaml
var nodeproxyYAML string

//go:embed services.yaml
var servicesYAML string

// demo is one run of the demo.
type demo struct {
	report *report
	mode   v1alpha1.ProxyMode
	bin    string
	keep   bool

	cluster    *cluster.Cluster
	nodeproxy  *install.Nodeproxy
	controller *cluster.Process
	agents     []*cluster.Process // by index of the node

	web      []*cluster.Pod // on node-1, node-2 and node-2
	visitor  *cluster.Pod   // a client on node-3, which has no web pod
	single   *cluster.Pod   // on node-1
	services map[string]*corev1.Service
}

// steps runs the whole demo up to the removal of the cluster.
func (d *demo) steps(ctx context.Context) error {
	special := d.nodePolicies
	if d.mode == v1alpha1.ModeUserspace { // there, what a server sees of its client does not show the policy
		special = d.endpointFails
	}
	for _, step := range []func(context.Context) error{
		d.startCluster,
		d.startNodeproxy,
		d.createServices,
		d.everyTypeAnswers,
		d.balancing,
		d.localPolicies,
		d.podsThatGo,
		d.serviceDeleted,
		d.rulesObjectsDeleted,
		d.restarts,
		d.othersChangeRules,
		special,
		d.servicePolicies,
		d.showObjects,
	} {
		if err := step(ctx); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

func (d *demo) startCluster(ctx context.Context) error {
	d.report.section("A cluster of three nodes on this machine")
	types, err := install.Scheme()
	if err != nil {
		return err
	}
	err = d.report.need("etcd, API server and controller manager are started", func() (string, error) {
		var err error
		d.cluster, err = cluster.Start(ctx, cluster.Options{
			Nodes: 3, Zones: []string{"zone-a", "zone-b", "zone-c"}, Scheme: types, Progress: d.report.out, Keep: d.keep,
			Programs: ipvskernel.Programs(),
		})
		if err != nil {
			return "", err
		}
		api, err := discovery.NewDiscoveryClientForConfig(d.cluster.RESTConfig())
		if err != nil {
			return "", err
		}
		version, err := api.ServerVersion()
		if err != nil {
			return "", err
		}
		return "Kubernetes " + version.GitVersion, nil
	})
	if err != nil {
		return err
	}
	err = d.report.need("three pods answer where they run, without any Service", func() (string, error) {
		for _, p := range []struct {
			node int
			name string
		}{{0, "web-1"}, {1, "web-2"}, {1, "web-3"}} {
			pod, err := d.runWeb(ctx, p.node, p.name)
			if err != nil {
				return "", err
			}
			d.web = append(d.web, pod)
		}
		if d.visitor, err = d.cluster.Node(2).RunPod(ctx, cluster.PodSpec{Name: "visitor"}); err != nil {
			return "", err
		}
		for _, pod := range d.web {
			if err := expect(ctx, d.visitor.Place, "tcp", pod.Address(8080), pod.Name()); err != nil {
				return "", err
			}
		}
		return "web-1 on node-1, web-2 and web-3 on node-2", nil
	})
	if err != nil {
		return err
	}
	return d.report.need("nothing programs Services yet: the API server's is silent", func() (string, error) {
		return "", silent(ctx, d.visitor.Place, "tcp", "10.96.0.1:443")
	})
}

func (d *demo) runWeb(ctx context.Context, node int, name string) (*cluster.Pod, error) {
	err := d.cluster.Client().Create(ctx, &corev1.Namespace{ObjectMeta: objectMeta("", namespace)})
	if client.IgnoreAlreadyExists(err) != nil {
		return nil, err
	}
	return d.cluster.Node(node).RunPod(ctx, cluster.PodSpec{
		Namespace: namespace, Name: name, Labels: map[string]string{"app": "web"},
	})
}

// startNodeproxy installs nodeproxy as its documentation describes and starts the
// controller and the agents.
func (d *demo) startNodeproxy(ctx context.Context) error {
	d.report.section("nodeproxy: one controller, one agent on each node")
	d.nodeproxy = &install.Nodeproxy{Cluster: d.cluster, Bin: d.bin, Config: "config"}
	err := d.report.need("CRDs, the namespace, roles and one NodeProxy object are created", func() (string, error) {
		if err := d.nodeproxy.Prepare(ctx); err != nil {
			return "", err
		}
		return "mode " + string(d.mode), d.apply(ctx, "nodeproxy.yaml", fmt.Sprintf(nodeproxyYAML, d.mode))
	})
	if err != nil {
		return err
	}
	err = d.report.need("the controller and three agents are started", func() (string, error) {
		if d.controller, err = d.nodeproxy.StartController(); err != nil {
			return "", err
		}
		pids := []string{fmt.Sprint(d.controller.PID())}
		for _, node := range d.cluster.Nodes() {
			agent, err := d.nodeproxy.StartAgent(node)
			if err != nil {
				return "", err
			}
			d.agents = append(d.agents, agent)
			pids = append(pids, fmt.Sprint(agent.PID()))
		}
		return "processes " + strings.Join(pids, ", "), nil
	})
	if err != nil {
		return err
	}
	err = d.report.need("each node reports the desired state", func() (string, error) {
		return "Programmed is True on three nodes", install.Until(ctx, programmingLimit, d.programmed)
	})
	if err != nil {
		return err
	}
	d.report.check("the API server answers at its own Service, 10.96.0.1", func() (string, error) {
		return "", install.Until(ctx, programmingLimit, func(ctx context.Context) error {
			conn, err := d.visitor.Connect(ctx, "tcp", "10.96.0.1:443")
			if err != nil {
				return err
			}
			return conn.Close()
		})
	})
	return nil
}

// programmed returns nil when every process runs and every node has reported
// that all is programmed.
func (d *demo) programmed(ctx context.Context) error {
	if err := install.Running(append([]*cluster.Process{d.controller}, d.agents...)...); err != nil {
		return err
	}
	return d.nodeproxy.Programmed(ctx)
}

// apply gives an embedded file to kubectl apply.
func (d *demo) apply(ctx context.Context, name, text string) error {
	path := filepath.Join(d.cluster.Dir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	_, err := d.cluster.Kubectl(ctx, "apply", "-f", path)
	return err
}
