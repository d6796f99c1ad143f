// Package apiserver starts an API server without controllers, for tests that run programs against it.
package apiserver

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// assetsVariable names the directory with the programs.
const assetsVariable = "KUBEBUILDER_ASSETS"

// Server is a running API server.
type Server struct {
	// Kubeconfig is the file of an administrator, Kubectl the program of the server's version.
	Kubeconfig, Kubectl string
}

// Start starts an API server with CRDs, files or directories of them, for the time of a test.
func Start(t *testing.T, crds ...string) *Server {
	t.Helper()
	assets := os.Getenv(assetsVariable)
	if assets == "" {
		const missing = assetsVariable + " is not set, so there is no API server to test with: run make test, which builds one and sets it"
		if testing.Short() {
			t.Skip(missing)
		}
		t.Fatal(missing)
	}
	ctrl.SetLogger(logr.Discard())
	env := &envtest.Environment{CRDInstallOptions: envtest.CRDInstallOptions{Paths: crds, ErrorIfPathMissing: true}}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	if _, err := env.Start(); err != nil {
		t.Fatalf("starting the API server of %s: %v", assets, err)
	}
	admin, err := env.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := admin.KubeConfig()
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Kubeconfig: filepath.Join(t.TempDir(), "kubeconfig"), Kubectl: filepath.Join(assets, "kubectl")}
	if err := os.WriteFile(s.Kubeconfig, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}
