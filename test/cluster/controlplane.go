package cluster

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/test/cluster/binaries"
)

// controllers are those that run where nodes have no kubelets. Left out are the ones that would find our
// nodes and pods dead, because no kubelet renews their heartbeats, and those
// that need a cloud.
const controllers = "endpointslice-controller,endpointslice-mirroring-controller,endpoints-controller," +
	"serviceaccount-controller,serviceaccount-token-controller,root-ca-certificate-publisher-controller," +
	"namespace-controller,garbage-collector-controller,deployment-controller,replicaset-controller," +
	"daemonset-controller,service-cidr-controller"

// startControlPlane starts etcd, kube-apiserver and kube-controller-manager and
// waits until the API server is ready.
func (c *Cluster) startControlPlane(ctx context.Context) error {
	_, fromRoot := rootAddresses(c.slot.number)
	inside, _, err := net.ParseCIDR(wireAddress)
	if err != nil {
		return err
	}
	c.pki, err = newPKI(filepath.Join(c.slot.dir(), "pki"),
		[]net.IP{inside, fromRoot.Addr().AsSlice(), net.ParseIP(apiServiceIP), net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return fmt.Errorf("making certificates: %w", err)
	}
	if err := c.makeAdmins(fromRoot.Addr().String()); err != nil {
		return err
	}
	programs := []binaries.Program{binaries.Etcd, binaries.APIServer}
	if !c.options.NoControllers {
		programs = append(programs, binaries.ControllerManager)
	}
	if c.options.RealNodes {
		if err := c.pki.client(kubeletClient, "kube-apiserver-kubelet-client", "system:masters"); err != nil {
			return fmt.Errorf("making certificates: %w", err)
		}
		programs = append(programs, binaries.Scheduler)
	}
	for _, program := range programs {
		if program == binaries.ControllerManager {
			// It waits 20 s for an API server, which may take longer.
			if err := c.waitReady(ctx); err != nil {
				return err
			}
		}
		if err := c.startProgram(program); err != nil {
			return err
		}
	}
	return c.waitReady(ctx)
}

// makeAdmins writes the administrator's access, for use inside the cluster and
// for use in the root namespace, and makes the clients.
func (c *Cluster) makeAdmins(fromRoot string) error {
	if _, err := c.KubeconfigFor("inside-admin", "admin", "system:masters"); err != nil {
		return err
	}
	path, err := c.pki.kubeconfig("admin", apiURL(fromRoot), "admin", "system:masters")
	if err != nil {
		return fmt.Errorf("writing the administrator's access: %w", err)
	}
	if c.config, err = clientcmd.BuildConfigFromFlags("", path); err != nil {
		return fmt.Errorf("reading the administrator's access: %w", err)
	}
	c.config.QPS, c.config.Burst = -1, -1
	c.config.WarningHandler = rest.NoWarnings{}
	// The address exists only on this machine: no web proxy knows it.
	c.config.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	httpClient, err := rest.HTTPClientFor(c.config)
	if err != nil {
		return err
	}
	// The mapper asks the server only when it is first needed.
	c.client, err = client.New(c.config, client.Options{Scheme: c.options.Scheme, HTTPClient: httpClient})
	return err
}

// Kubeconfig is the path of the administrator's access, for use in the root
// namespace.
func (c *Cluster) Kubeconfig() string { return c.pki.path("admin.kubeconfig") }

// insideAdmin is the path of the administrator's access for use inside.
func (c *Cluster) insideAdmin() string { return c.pki.path("inside-admin.kubeconfig") }

// KubeconfigFor makes a client certificate for a user and returns the path of a
// kubeconfig with it, for programs that run inside the cluster. What the user
// may do is up to RBAC.
func (c *Cluster) KubeconfigFor(name, user string, groups ...string) (string, error) {
	inside, _, err := net.ParseCIDR(wireAddress)
	if err != nil {
		return "", err
	}
	path, err := c.pki.kubeconfig(name, apiURL(inside.String()), user, groups...)
	if err != nil {
		return "", fmt.Errorf("writing the access of %s: %w", user, err)
	}
	return path, nil
}

// APIServerURL is where the API server answers inside each cluster.
const APIServerURL = "https://172.20.0.1:6443"

func apiURL(host string) string { return "https://" + net.JoinHostPort(host, strconv.Itoa(apiPort)) }

func (c *Cluster) etcdArgs() []string {
	return []string{
		"--data-dir=" + filepath.Join(c.slot.dir(), "etcd"),
		"--listen-client-urls=http://127.0.0.1:2379",
		"--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380",
		"--unsafe-no-fsync",
		"--log-level=warn",
	}
}

// kubeletClient is the name of the certificate by which the API server calls
// kubelets.
const kubeletClient = "kubelet-client"

func (c *Cluster) apiServerArgs(advertise string) []string {
	args := []string{
		"--etcd-servers=http://127.0.0.1:2379",
		"--bind-address=0.0.0.0",
		"--secure-port=" + strconv.Itoa(apiPort),
		"--advertise-address=" + advertise,
		"--cert-dir=" + c.pki.dir,
		"--tls-cert-file=" + c.pki.path("serving.crt"),
		"--tls-private-key-file=" + c.pki.path("serving.key"),
		"--client-ca-file=" + c.pki.path("ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.pki.path("service-accounts.crt"),
		"--service-account-signing-key-file=" + c.pki.path("service-accounts.key"),
		"--service-cluster-ip-range=" + serviceCIDR + "," + serviceCIDR6,
		"--allow-privileged",
	}
	if c.options.RealNodes {
		return append(args,
			"--authorization-mode=Node,RBAC",
			"--enable-admission-plugins=NodeRestriction",
			"--kubelet-client-certificate="+c.pki.path(kubeletClient+".crt"),
			"--kubelet-client-key="+c.pki.path(kubeletClient+".key"),
			// The names of nodes do not resolve here.
			"--kubelet-preferred-address-types=InternalIP",
		)
	}
	return append(args,
		"--authorization-mode=RBAC",
		// Pods here carry no token, and no controller takes the taint of a new
		// node away.
		"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
	)
}

func (c *Cluster) managerArgs(kubeconfig string) []string {
	args := []string{"--controllers=" + controllers}
	if c.options.RealNodes {
		args = []string{
			"--controllers=*",
			"--allocate-node-cidrs",
			"--cluster-cidr=" + PodRanges,
			"--service-cluster-ip-range=" + serviceCIDR + "," + serviceCIDR6,
		}
	}
	return append(args,
		"--kubeconfig="+kubeconfig,
		"--leader-elect=false",
		"--use-service-account-credentials",
		"--service-account-private-key-file="+c.pki.path("service-accounts.key"),
		"--root-ca-file="+c.pki.path("ca.crt"),
		"--cert-dir="+c.pki.dir,
		"--bind-address=127.0.0.1",
		"--kube-api-qps=500",
		"--kube-api-burst=1000",
	)
}

func (c *Cluster) schedulerArgs(kubeconfig string) []string {
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--leader-elect=false",
		"--cert-dir=" + c.pki.dir,
		"--bind-address=127.0.0.1",
	}
}

// CAFile is the path of the certificate of the cluster's authority, which signs
// the API server's certificate and those of its clients.
func (c *Cluster) CAFile() string { return c.pki.path("ca.crt") }

// readyWithin is how long the API server may take to get ready. On a quiet machine it
// takes seconds; in an emulated kernel beside others, minutes.
const readyWithin = 5 * time.Minute

// waitReady waits until the API server is ready to serve.
func (c *Cluster) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	httpClient, err := rest.HTTPClientFor(c.config)
	if err != nil {
		return err
	}
	for {
		for _, proc := range c.running() {
			if err := proc.ended(); err != nil {
				return err
			}
		}
		if isReady(ctx, httpClient, c.config.Host+"/readyz") {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the API server is not ready: %w; %s", ctx.Err(), c.running()[binaries.APIServer].Tail())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func isReady(ctx context.Context, httpClient *http.Client, url string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false
	}
	response, err := httpClient.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	return response.StatusCode == http.StatusOK
}
