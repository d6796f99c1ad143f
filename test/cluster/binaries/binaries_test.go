package binaries

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestRequiredVersion(t *testing.T) {
	for name, tc := range map[string]struct{ gomod, want string }{
		"on one line":            {"go 1.26.0\n\nrequire example.org/x v1.2.3\n", "v1.2.3"},
		"in a block":             {"require (\n\texample.org/x v1.2.3 // indirect\n)\n", "v1.2.3"},
		"only a longer path":     {"require example.org/x/y v1.2.3\n", ""},
		"only another dot":       {"require exampleXorg/x v1.2.3\n", ""},
		"only where it replaces": {"replace example.org/y => example.org/x v1.2.3\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := requiredVersion(tc.gomod, "example.org/x"); got != tc.want {
				t.Errorf("requiredVersion = %q, want %q", got, tc.want)
			}
		})
	}
}

// fakeClone makes a directory that has the pinned versions of a clone.
func fakeClone(t *testing.T, kubernetes string) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range map[string]string{
		"go.mod":                 productModule,
		"hack/etcd/go.mod":       "require go.etcd.io/etcd/server/v3 v3.6.8\n",
		"hack/etcd/go.sum":       "",
		"hack/kubernetes/go.mod": "require k8s.io/kubernetes " + kubernetes + "\n",
		"hack/kubernetes/go.sum": "",
		"hack/coredns/go.mod":    "require github.com/coredns/coredns v1.15.0\n",
		"hack/coredns/go.sum":    "",
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestDirectoryFollowsThePinsOnly(t *testing.T) {
	first, _, err := directory(fakeClone(t, "v1.36.3"), tools(""))
	if err != nil {
		t.Fatal(err)
	}
	same, _, err := directory(fakeClone(t, "v1.36.3"), tools(""))
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := directory(fakeClone(t, "v1.36.4"), tools(""))
	if err != nil {
		t.Fatal(err)
	}
	if first != same {
		t.Errorf("two clones with the same pins use %s and %s", first, same)
	}
	if first == other {
		t.Errorf("two versions of Kubernetes share %s", first)
	}
	if !strings.Contains(first, "v1.36.3") {
		t.Errorf("%s does not name the version", first)
	}
}

// TestEachKubernetesHasItsDirectory: a program of one must never be taken for that of another.
func TestEachKubernetesHasItsDirectory(t *testing.T) {
	root, err := findRoot()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for which, version := range map[string]string{"": "v1.", "oldest": "v1.", WithUserspace: "v1.25."} {
		dir, _, err := directory(root, tools(which))
		if err != nil {
			t.Fatal(err)
		}
		if seen[dir] || !strings.HasPrefix(filepath.Base(dir), "kubernetes-"+version) {
			t.Errorf("programs of the Kubernetes %q are in %s", which, dir)
		}
		seen[dir] = true
	}
}

func TestEnsureReturnsWhatIsThereWithoutBuilding(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("PATH", "") // a build needs go
	t.Setenv(MirrorVariable, "none")
	root := fakeClone(t, "v1.36.3")
	t.Chdir(filepath.Join(root, "hack"))

	var out bytes.Buffer
	if _, err := Ensure(t.Context(), &out, ControlPlane()...); err == nil || !strings.Contains(err.Error(), "go not found") {
		t.Fatalf("without programs and without go: %v, want a hint to install go", err)
	}
	dir, err := Directory()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range ControlPlane() {
		if err := os.WriteFile(filepath.Join(dir, string(p)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out.Reset()
	got, err := Ensure(t.Context(), &out, ControlPlane()...)
	if err != nil || got != dir {
		t.Errorf("Ensure = %q, %v, want %q", got, err, dir)
	}
	if out.Len() > 0 {
		t.Errorf("nothing to build, yet it prints %q", out.String())
	}
}

func TestEnsureOutsideACloneReportsIt(t *testing.T) {
	t.Chdir(t.TempDir())
	if _, err := Ensure(t.Context(), &bytes.Buffer{}, Etcd); err == nil || !strings.Contains(err.Error(), "not inside a clone") {
		t.Errorf("Ensure = %v, want it to state that this is not a clone", err)
	}
}

func TestLockIsHeldByOneAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(t.Context(), path, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	var out bytes.Buffer
	if _, err := lock(ctx, path, &out); err == nil {
		t.Error("a second lock was granted beside the first")
	}
	if !strings.Contains(out.String(), "waiting") {
		t.Errorf("the one that waits prints %q", out.String())
	}
	unlock()
	unlock, err = lock(t.Context(), path, &out)
	if err != nil {
		t.Fatalf("after unlock: %v", err)
	}
	unlock()
}
