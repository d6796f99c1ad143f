package simulated

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
)

const (
	assetsVariable = "KUBEBUILDER_ASSETS"
	// namespace is that of the Leases.
	namespace = "nodeproxy-system"
	// theController is the user, and the program, that the controller is to the API.
	theController = "nodeproxy-controller"
	// people are who writes what people write, in managedFields.
	people = "people"
)

// recordTo is for the golden tests of the plugin of kubectl.
var recordTo = flag.String("record", "", "a directory, in which states of the cluster are written to directories of their own")

var update = flag.Bool("update", false, "write the golden files in testdata instead of comparing with them")

// planes are the control planes of the package. There is one NodeProxy in a cluster,
// so tests that run side by side need one each.
var planes = newPool(2)

func TestMain(m *testing.M) {
	flag.Parse()
	if os.Getenv(assetsVariable) == "" {
		fmt.Printf("%s is not set, so there is no API server to test with: run make test, which builds one and sets it\n", assetsVariable)
		if testing.Short() {
			os.Exit(0)
		}
		os.Exit(1)
	}
	ctrl.SetLogger(logr.Discard())
	code := m.Run()
	if err := planes.close(); err != nil {
		fmt.Println("test/rollouts/simulated:", err)
		code = 1
	}
	os.Exit(code)
}

// plane is a running control plane. The users' configurations are for copies.
type plane struct {
	environment       *envtest.Environment
	admin, controller *rest.Config
	kubeconfig        string
}

// pool lends control planes, which are started when they are first needed.
type pool struct {
	free chan *plane // nil: not started yet

	mu      sync.Mutex
	started []*plane
}

func newPool(size int) *pool {
	p := &pool{free: make(chan *plane, size)}
	for range size {
		p.free <- nil
	}
	return p
}

// borrow waits for a free control plane. The test gives it back at its
// end, empty.
func (p *pool) borrow(t *testing.T) *plane {
	t.Helper()
	one := <-p.free
	if one == nil {
		var err error
		if one, err = startPlane(); err != nil {
			p.free <- nil
			t.Fatal(err)
		}
		p.mu.Lock()
		p.started = append(p.started, one)
		p.mu.Unlock()
	}
	t.Cleanup(func() { p.free <- one })
	return one
}

func (p *pool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, one := range p.started {
		errs = append(errs, one.environment.Stop(), os.Remove(one.kubeconfig))
	}
	return errors.Join(errs...)
}

func startPlane() (*plane, error) {
	env := &envtest.Environment{
		CRDDirectoryPaths:     []string{filepath.Join("..", "..", "..", "config", "crd", "bases")},
		ErrorIfCRDPathMissing: true,
	}
	// Room for more Services than a few.
	env.ControlPlane.GetAPIServer().Configure().Set("service-cluster-ip-range", "10.0.0.0/16")
	config, err := env.Start()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting the API server of %s: %w", os.Getenv(assetsVariable), err), env.Stop())
	}
	config.QPS = -1
	p := &plane{environment: env, admin: config}
	if err := p.prepare(); err != nil {
		return nil, errors.Join(err, env.Stop())
	}
	return p, nil
}

// prepare makes the users: kubectl's, and the controller's with the permissions that it is
// installed with.
func (p *plane) prepare() error {
	user, err := p.environment.AddUser(envtest.User{Name: theController}, p.admin)
	if err != nil {
		return fmt.Errorf("adding the controller's user: %w", err)
	}
	p.controller = user.Config()
	p.controller.UserAgent = theController
	admin, err := p.environment.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		return fmt.Errorf("adding kubectl's user: %w", err)
	}
	text, err := admin.KubeConfig()
	if err != nil {
		return fmt.Errorf("writing a kubeconfig: %w", err)
	}
	file, err := os.CreateTemp("", "nodeproxy-test-simulated-")
	if err != nil {
		return err
	}
	p.kubeconfig = file.Name()
	if _, err := file.Write(text); err != nil {
		return errors.Join(err, file.Close())
	}
	return errors.Join(file.Close(), p.grantRole(context.Background()))
}

// grantRole gives the controller's user the roles that are installed with it.
func (p *plane) grantRole(ctx context.Context) error {
	scheme, err := objects.NewScheme()
	if err != nil {
		return err
	}
	if err := rbacv1.AddToScheme(scheme); err != nil {
		return err
	}
	c, err := client.New(p.admin, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	file, err := os.Open(filepath.Join("..", "..", "..", "config", "rbac", "controller_role.yaml"))
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // only read from
	documents := yaml.NewYAMLOrJSONDecoder(file, 4096)
	role, local := &rbacv1.ClusterRole{}, &rbacv1.Role{}
	if err := errors.Join(documents.Decode(role), documents.Decode(local)); err != nil {
		return fmt.Errorf("reading the controller's roles: %w", err)
	}
	who := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: theController}}
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, role, local,
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role.Name}, Subjects: who,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: local.Name}, Subjects: who,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: local.Name},
		},
	} {
		if err := c.Create(ctx, object); err != nil {
			return fmt.Errorf("creating %T %s: %w", object, object.GetName(), err)
		}
	}
	return nil
}

// kubectl runs the real kubectl and returns what it prints.
func (p *plane) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	// The variable is read here and not in TestMain, because go test keys its cache of
	// results on what is read while a test runs.
	cmd := exec.CommandContext(t.Context(), filepath.Join(os.Getenv(assetsVariable), "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+p.kubeconfig)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %v: %v\n%s", args, err, out)
	}
	return string(out)
}
