package tenants

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
)

// apiServer is where nodes reach the API server: cluster.APIServerURL.
var apiServer = struct {
	ip   string
	port int32
}{"172.20.0.1", 6443}

// reachAPIServer returns nil if the rules of nodes send no connections to the API server
// elsewhere, and it answers. The thief would answer without TLS.
func (r *rig) reachAPIServer(ctx context.Context) error {
	for i, node := range r.cluster.Nodes() {
		rules, err := node.Exec(ctx, "iptables-save", "-t", "nat")
		if err != nil {
			return err
		}
		if strings.Contains(rules, "-d "+apiServer.ip+"/32") {
			return fmt.Errorf("%s has rules for connections to %s", node.Name(), apiServer.ip)
		}
		for _, from := range []*http.Transport{node.Transport(), r.visitors[i].Transport()} {
			from.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // any answer by TLS will do
			response, err := (&http.Client{Transport: from, Timeout: patience}).Get(cluster.APIServerURL)
			if err != nil {
				return err
			}
			_ = response.Body.Close() // not read
		}
	}
	return nil
}

// takesAPIServer has a Service of the attacker name the API server's address as an external IP.
func (r *rig) takesAPIServer(name, thief string) attack {
	return attack{
		name: name, limit: "no Service gets it",
		objects: func(int) []client.Object {
			return service(thief, 1, func(s *corev1.Service) {
				s.Spec.Ports[0].Port, s.Spec.ExternalIPs = apiServer.port, []string{apiServer.ip}
			}, slice(thief, 1, []string{r.thief.IP()}))
		},
		effect: func(ctx context.Context) error {
			if err := r.hasEvent(addressesSkipped, thief, apiServer.ip)(ctx); err != nil {
				return err
			}
			return r.reachAPIServer(ctx)
		},
	}
}

// rejectedAddress is the endpoint that the iptables-restore of rejecting rejects.
const rejectedAddress = "10.253.66.66"

// rejecting puts an iptables-restore before the machine's, and returns the PATH with it, as a
// variable. It rejects rules with rejectedAddress as the kernel rejects rules: nothing is known
// that the API server and the programs accept and every kernel rejects.
func (r *rig) rejecting() (string, error) {
	real, err := exec.LookPath("iptables-restore")
	if err != nil {
		return "", err
	}
	directory := filepath.Join(r.cluster.Dir(), "rejecting")
	script := fmt.Sprintf(`#!/bin/sh
input=%s/input.$$
cat >"$input"
exec 3<"$input" 4<"$input"
rm "$input"
if lines=$(grep -n -- '^-A.* %s:' <&3); then
	echo "$lines" | sed 's/^\([0-9]*\):.*/line \1: RULE_APPEND failed (Invalid argument)/' >&2
	exit 4
fi
exec %s "$@" <&4
`, directory, rejectedAddress, real)
	err = errors.Join(os.MkdirAll(directory, 0o755), //nolint:gosec // as other directories of programs
		os.WriteFile(filepath.Join(directory, "iptables-restore"), []byte(script), 0o755)) //nolint:gosec // a program
	return "PATH=" + directory + ":" + os.Getenv("PATH"), err
}

// hasRejected returns nil once nodes report that they reject a Service of the attacker.
func (r *rig) hasRejected(ctx context.Context) error {
	for _, node := range r.cluster.Nodes() {
		rules := &v1alpha1.NodeProxyRules{}
		if err := r.cluster.Client().Get(ctx, client.ObjectKey{Name: node.Name()}, rules); err != nil {
			return err
		}
		if rules.Status.Rejected == nil || !strings.Contains(strings.Join(rules.Status.Rejected.Examples, "\n"), attacker+"/") {
			return fmt.Errorf("%s does not report that it rejects a Service: %+v", node.Name(), rules.Status.Rejected)
		}
	}
	return r.programmed(ctx)
}

// rollOut is the administrator's policy for all Services of both tenants, while the attacker
// has nodes reject a Service that the policy has shaped. It returns nil once the policy has
// shaped all Services of the second tenant, and has gone again.
func (r *rig) rollOut(ctx context.Context) error {
	policy := &v1alpha1.ServiceProxyPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "sticky"},
		Spec: v1alpha1.ServiceProxyPolicySpec{
			NamespaceSelector: v1alpha1.LabelSelector{MatchExpressions: []v1alpha1.LabelSelectorRequirement{
				{Key: corev1.LabelMetadataName, Operator: "In", Values: []string{attacker, victim}},
			}},
			Overrides: v1alpha1.ServiceOverrides{SessionAffinity: &v1alpha1.SessionAffinityOverride{ClientIPTimeoutSeconds: 600}},
		},
	}
	if err := r.cluster.Client().Create(ctx, policy); err != nil {
		return err
	}
	changed := 0
	shaped := func(want bool) func(context.Context) error {
		return func(ctx context.Context) error {
			changed++
			bad := service("halting", 1, nil, slice("halting", 1, append(endpoints(changed, 5), rejectedAddress)))
			if err := r.write(ctx, bad); err != nil {
				return err
			}
			return r.shapes(ctx, policy.Name, want)
		}
	}
	err := install.Until(ctx, patience, shaped(true))
	if err := r.cluster.Client().Delete(ctx, policy); err != nil {
		return err
	}
	return errors.Join(err, install.Until(ctx, patience, shaped(false)))
}

// shapes returns nil once a policy shapes all Services of the second tenant, or none.
func (r *rig) shapes(ctx context.Context, policy string, all bool) error {
	list := &v1alpha1.ServiceProxyRulesList{}
	if err := r.cluster.Client().List(ctx, list); err != nil {
		return err
	}
	for i := range list.Items {
		rules := &list.Items[i]
		if !strings.HasPrefix(rules.Name, victim+".") {
			continue
		}
		has := strings.Contains(" "+strings.Join(rules.Spec.Policies, " ")+" ", " "+policy+" ")
		if has != all {
			return fmt.Errorf("%s is shaped by the policies %q", rules.Name, rules.Spec.Policies)
		}
	}
	return nil
}

// pretended is where a kube-proxy answers that listens at IPv6's loopback.
const pretended = "[::1]:10249"

// podUser is the user ID of pods that are not root here.
const podUser = "65534"

// unprivileged starts a process that is not root, in the first node's network as a pod with
// hostNetwork is, which answers at addresses over HTTP.
func (r *rig) unprivileged(ctx context.Context, at ...string) (*cluster.Process, error) {
	text, err := os.ReadFile(filepath.Join(r.cluster.Dir(), "echo"))
	if err != nil {
		return nil, err
	}
	path := filepath.Join(r.cluster.Dir(), "pretender")
	if _, err := os.Stat(path); err != nil { // it may run
		if err := os.WriteFile(path, text, 0o755); err != nil { //nolint:gosec // a program for everybody
			return nil, err
		}
	}
	args := []string{"--reuid", podUser, "--regid", podUser, "--clear-groups", path}
	for _, address := range at {
		args = append(args, address+"/http")
	}
	node := r.cluster.Node(0)
	process, err := node.Start(cluster.Command{Name: "pretender", Path: "/usr/bin/setpriv", Args: args})
	if err != nil {
		return nil, err
	}
	return process, install.Until(ctx, patience, func(ctx context.Context) error {
		for _, address := range at {
			if _, err := node.Get(ctx, "http://"+address+"/proxyMode"); err != nil {
				return err
			}
		}
		return nil
	})
}

// pretend has such a process answer where a kube-proxy would, before the agent starts.
func (r *rig) pretend(ctx context.Context) error {
	if err := r.agents[0].Stop(); err != nil {
		return err
	}
	var err error
	if r.pretender, err = r.unprivileged(ctx, pretended); err != nil {
		return err
	}
	if err := r.startAgent(0); err != nil {
		return err
	}
	node := r.cluster.Node(0)
	return install.Until(ctx, patience, func(ctx context.Context) error {
		_, err := node.Get(ctx, "http://"+node.AddressPort(healthPort)+"/healthz")
		return err
	})
}

// stopPretending ends that process.
func (r *rig) stopPretending(context.Context) error { return r.pretender.Stop() }

const (
	healthPort = 10256
	// healthConnections is how many connections the port takes.
	healthConnections = 256
)

// flood has a pod of the attacker keep many more connections to port 10256 of each node open than
// the port takes, each with a request that never ends, and open those again that are closed. They
// are so many that an agent which kept them all would take more memory than the table allows. They
// come evenly: a burst overflows the kernel's queue of received packets, and takes packets from
// all, with or without an agent.
func (r *rig) flood(ctx context.Context) error {
	const each, soon, later = 12 * healthConnections, onceTime, 4 * onceTime
	var clients sync.WaitGroup
	defer clients.Wait()
	for _, node := range r.cluster.Nodes() {
		to := netip.MustParseAddrPort(node.AddressPort(healthPort))
		for i := range each {
			clients.Go(func() {
				next := time.NewTimer(soon * time.Duration(i) / each)
				defer next.Stop()
				for {
					select {
					case <-ctx.Done():
						return
					case <-next.C:
					}
					next.Reset(later)
					if conn, err := r.open(to); err == nil {
						hang(ctx, conn)
					}
				}
			})
		}
	}
	return r.floodCapped(ctx)
}

// floodCapped counts the connections of the flooded ports until the context ends. It returns nil if all
// that the agents take were open at some time, and never more.
func (r *rig) floodCapped(ctx context.Context) error {
	// The list is not of one moment: a connection that takes another one's place may be listed with it.
	const most = 2 * healthConnections
	tick := time.NewTicker(probePause)
	defer tick.Stop()
	peaks := make([]int, len(r.cluster.Nodes()))
	for ctx.Err() == nil {
		for i, node := range r.cluster.Nodes() {
			n, err := connectionsAt(node, healthPort)
			if err != nil {
				return err
			}
			peaks[i] = max(peaks[i], n)
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	for i, node := range r.cluster.Nodes() {
		switch {
		case i == 0 && r.occupant != nil: // another attack has the port there
		case peaks[i] > most:
			return fmt.Errorf("%d connections to port %d of %s are open at once, more than %d", peaks[i], healthPort, node.Name(), most)
		case peaks[i] < healthConnections:
			return fmt.Errorf("at most %d connections to port %d of %s are open, not all %d: this proves too little", peaks[i], healthPort, node.Name(), healthConnections)
		}
	}
	return nil
}

// connectionsAt counts the connections at a port of a node that a process has. The kernel lists those,
// too, which it has closed, or which wait to be accepted: without an inode.
func connectionsAt(node *cluster.Node, port uint16) (n int, err error) {
	const listening, none = "0A", "0"
	local := fmt.Sprintf(":%04X", port)
	for _, name := range []string{"tcp", "tcp6"} {
		var text []byte
		err := node.Do(func() (err error) {
			text, err = os.ReadFile("/proc/thread-self/net/" + name)
			return err
		})
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(string(text)) {
			// sl local_address rem_address st queues timer retrnsmt uid timeout inode
			f := strings.Fields(line)
			if len(f) > 9 && strings.HasSuffix(f[1], local) && f[3] != listening && f[9] != none {
				n++
			}
		}
	}
	return n, nil
}

// open begins a connection of the attacker's pod, and does not wait for it as Dial does, with a
// thread that is in the pod's network namespace: thousands of threads would take the processors
// from all.
func (r *rig) open(to netip.AddrPort) (*os.File, error) {
	fd := -1
	err := r.thief.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	conn := os.NewFile(uintptr(fd), to.String()) //nolint:gosec // not negative
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// again returns what writes the objects of an attack once more every pause until the context ends.
func (r *rig) again(objects func(round int) []client.Object, pause time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for round := 1; ; round++ {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
			if err := r.write(r.Context(), objects(round)); err != nil && !apierrors.IsConflict(err) {
				return err
			}
		}
	}
}

// hang sends a part of a request and waits until the connection is closed.
func hang(ctx context.Context, conn io.ReadWriteCloser) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // it may be closed already
	defer func() { stop(); _ = conn.Close() }()                 // it may be closed already
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: "); err == nil {
		_, _ = io.Copy(io.Discard, conn) // until its end, whichever it is
	}
}

// agentAccount is the service account of agents.
const agentAccount = "nodeproxy-agent"

// guardLeases installs the admission policy for agents, and a service account as they have.
func (r *rig) guardLeases(ctx context.Context) error {
	if _, err := r.cluster.Kubectl(ctx, "apply", "-f", filepath.Join(r.nodeproxy.Config, "admission", "agents.yaml")); err != nil {
		return err
	}
	at := metav1.ObjectMeta{Namespace: install.Namespace, Name: agentAccount + "-account"}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: install.Namespace, Name: agentAccount}}
	for _, object := range []client.Object{
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: agentAccount}},
		&rbacv1.RoleBinding{ObjectMeta: at, Subjects: subjects, RoleRef: rbacv1.RoleRef{Kind: "Role", APIGroup: rbacv1.GroupName, Name: agentAccount}},
	} {
		if err := r.cluster.Client().Create(ctx, object); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	// The API server needs a moment for both.
	return install.Until(ctx, patience, func(ctx context.Context) error {
		stolen, err := r.stolenToken(ctx)
		if err != nil {
			return err
		}
		node := r.cluster.Node(0).Name()
		if err := markLease(ctx, stolen, node, 0); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "can only write name and spec") {
			if err == nil { // what is there already is not denied
				lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: "agent." + node}}
				err = r.cluster.Client().Patch(ctx, lease, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":null}}`)))
			}
			return fmt.Errorf("a label on a Lease: %w", errors.Join(errors.New("not denied by the policy"), err))
		}
		return nil
	})
}

// stolenToken is a client with the token of the first node's agent.
func (r *rig) stolenToken(ctx context.Context) (client.Client, error) {
	node := &corev1.Node{}
	if err := r.cluster.Client().Get(ctx, client.ObjectKey{Name: r.cluster.Node(0).Name()}, node); err != nil {
		return nil, err
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Node", APIVersion: "v1", Name: node.Name, UID: node.UID},
	}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: agentAccount}}
	if err := r.cluster.Client().SubResource("token").Create(ctx, account, request); err != nil {
		return nil, err
	}
	config := rest.AnonymousClientConfig(r.cluster.RESTConfig())
	config.BearerToken, config.QPS = request.Status.Token, -1
	return client.New(config, client.Options{Scheme: r.cluster.Client().Scheme()})
}

// markLease tries one of the marks that would keep a Lease from going, or have others take it for theirs.
func markLease(ctx context.Context, by client.Client, node string, n int) error {
	lease := &coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{Namespace: install.Namespace, Name: "agent." + node},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new(node)},
	}
	switch n % 3 {
	case 0:
		lease.Labels = map[string]string{"app": "web"}
	case 1:
		lease.Finalizers = []string{"example.org/stay"}
	case 2:
		lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: "1"}}
	}
	//nolint:staticcheck // what the agent does, without generated types
	return by.Patch(ctx, lease, client.Apply, client.ForceOwnership, client.FieldOwner("nodeproxy-agent"))
}

// markLease writes marks on the first node's Lease until the context ends; each is denied.
func (r *rig) markLease(ctx context.Context) error {
	stolen, err := r.stolenToken(r.Context())
	if err != nil {
		return err
	}
	const pause = 100 * time.Millisecond
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for n := 0; ctx.Err() == nil; n++ {
		if err := markLease(r.Context(), stolen, r.cluster.Node(0).Name(), n); !apierrors.IsForbidden(err) {
			return fmt.Errorf("the Lease of an agent was marked: %w", errors.Join(errors.New("not denied"), err))
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	return nil
}
