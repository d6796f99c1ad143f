package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// Namespace is where leases live.
const Namespace = "nodeproxy-system"

// The users that the programs act as.
const (
	controllerUser = "nodeproxy-controller"
	agentUser      = "nodeproxy-agent"
)

// Nodeproxy is an installation in a cluster.
type Nodeproxy struct {
	// Cluster is where it runs.
	Cluster *cluster.Cluster
	// Bin is the directory with the programs; Config the directory config of this
	// repository.
	Bin, Config string
	// Mode is that of the nodes; empty: the default.
	Mode v1alpha1.ProxyMode
}

// Scheme knows the built-in kinds and nodeproxy's, for cluster.Options.
func Scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(scheme.AddToScheme(s), v1alpha1.AddToScheme(s))
}

// Prepare creates the CRDs, the namespace and the roles. It can be called again.
func (n *Nodeproxy) Prepare(ctx context.Context) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}
	if err := n.Cluster.Client().Create(ctx, namespace); client.IgnoreAlreadyExists(err) != nil {
		return err
	}
	crds := filepath.Join(n.Config, "crd", "bases")
	// In one go: kubectl takes long to start.
	apply := []string{"apply", "-f", crds}
	for _, role := range []string{"controller_role.yaml", "agent_role.yaml"} {
		apply = append(apply, "-f", filepath.Join(n.Config, "rbac", role))
	}
	if _, err := n.Cluster.Kubectl(ctx, apply...); err != nil {
		return err
	}
	if _, err := n.Cluster.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout=60s", "-f", crds); err != nil {
		return err
	}
	return n.bind(ctx)
}

// bind gives each user the generated roles of its name, in the whole cluster
// and in the namespace of the leases.
func (n *Nodeproxy) bind(ctx context.Context) error {
	for _, name := range []string{controllerUser, agentUser} {
		err := n.Cluster.Client().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Subjects:   []rbacv1.Subject{user(name)},
			RoleRef:    rbacv1.RoleRef{Kind: "ClusterRole", APIGroup: rbacv1.GroupName, Name: name},
		})
		if client.IgnoreAlreadyExists(err) != nil {
			return err
		}
	}
	for _, name := range []string{controllerUser, agentUser} {
		err := n.Cluster.Client().Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name},
			Subjects:   []rbacv1.Subject{user(name)},
			RoleRef:    rbacv1.RoleRef{Kind: "Role", APIGroup: rbacv1.GroupName, Name: name},
		})
		if client.IgnoreAlreadyExists(err) != nil {
			return err
		}
	}
	return nil
}

func user(name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name}
}

// Enable creates the NodeProxy: pods are recognized by the cluster's pod range. The
// size of the connection tracking table is the machine's, which nodes that are
// network namespaces cannot change.
func (n *Nodeproxy) Enable(ctx context.Context) error {
	settings := &v1alpha1.WrittenSettings{
		DetectLocal: &v1alpha1.DetectLocalSettings{
			Mode: v1alpha1.DetectLocalClusterCIDR, ClusterCIDRs: strings.Split(cluster.PodRanges, ","),
		},
		Conntrack: &v1alpha1.ConntrackSettings{MaxPerCore: new(int32(0))},
	}
	if n.Mode != "" {
		settings.Mode = &n.Mode
	}
	return n.Cluster.Client().Create(ctx, &v1alpha1.NodeProxy{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName},
		Spec:       v1alpha1.NodeProxySpec{Settings: settings},
	})
}

// StartController starts the controller beside the API server.
func (n *Nodeproxy) StartController(args ...string) (*cluster.Process, error) {
	kubeconfig, err := n.Cluster.KubeconfigFor(controllerUser, controllerUser)
	if err != nil {
		return nil, err
	}
	return n.Cluster.ControlPlane().Start(cluster.Command{
		Path: filepath.Join(n.Bin, "nodeproxy-controller"),
		Args: append([]string{"--kubeconfig", kubeconfig}, args...),
	})
}

// StartAgent starts a node's agent.
func (n *Nodeproxy) StartAgent(node *cluster.Node, args ...string) (*cluster.Process, error) {
	command, err := n.AgentCommand(node)
	if err != nil {
		return nil, err
	}
	command.Args = append(command.Args, args...)
	return node.Start(command)
}

// AgentCommand is how a node's agent is started.
func (n *Nodeproxy) AgentCommand(node *cluster.Node) (cluster.Command, error) {
	kubeconfig, err := n.Cluster.KubeconfigFor(agentUser+"-"+node.Name(), agentUser)
	if err != nil {
		return cluster.Command{}, err
	}
	state := filepath.Join(n.Cluster.Dir(), "state-"+node.Name())
	return cluster.Command{
		Path: filepath.Join(n.Bin, "nodeproxy-agent"),
		Args: []string{"--kubeconfig", kubeconfig, "--node-name", node.Name(), "--state-dir", state},
	}, os.MkdirAll(state, 0o700)
}

// Programmed returns nil when every node of the cluster reports that its
// kernel has the desired state, else what is missing.
func (n *Nodeproxy) Programmed(ctx context.Context) error {
	return n.Reported(ctx, v1alpha1.ReasonProgrammed)
}

// Reported returns nil when the condition Programmed has the given reason on
// every node, else where it has not.
func (n *Nodeproxy) Reported(ctx context.Context, reason string) error {
	for _, node := range n.Cluster.Nodes() {
		rules := &v1alpha1.NodeProxyRules{}
		if err := n.Cluster.Client().Get(ctx, client.ObjectKey{Name: node.Name()}, rules); err != nil {
			return err
		}
		condition := meta.FindStatusCondition(rules.Status.Conditions, v1alpha1.ConditionProgrammed)
		if condition == nil {
			return fmt.Errorf("%s has not reported yet", node.Name())
		}
		if condition.Reason != reason {
			return fmt.Errorf("%s: Programmed is %s, %s: %s", node.Name(), condition.Status, condition.Reason, condition.Message)
		}
	}
	return nil
}

// ErrEnded means that a process of nodeproxy has ended, so that waiting longer
// is of no use.
var ErrEnded = errors.New("a process of nodeproxy has ended")

// Running returns an error that wraps ErrEnded, with the last lines of its
// output, when one of the processes has ended.
func Running(processes ...*cluster.Process) error {
	for _, p := range processes {
		select {
		case <-p.Done():
			return fmt.Errorf("%w; %s", ErrEnded, p.Tail())
		default:
		}
	}
	return nil
}

// longestPause is the longest pause of Until between two tries.
const longestPause = 200 * time.Millisecond

// Until repeats f until it succeeds or returns ErrEnded, and returns its last
// error when that takes longer than limit. The pause between two tries is
// short, because the time is often what is measured; but about as long as the try
// took, so that looking leaves the processor to what is waited for.
func Until(ctx context.Context, limit time.Duration, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var last error
	for {
		begin := time.Now()
		err := f(ctx)
		if err == nil || errors.Is(err, ErrEnded) {
			return err
		}
		if ctx.Err() == nil || last == nil {
			last = err // a later one may only report that time is up
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %s: %w", limit, last)
		case <-time.After(min(max(time.Since(begin), 10*time.Millisecond), longestPause)):
		}
	}
}
