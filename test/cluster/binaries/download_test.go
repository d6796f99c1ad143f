package binaries

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// server is a mirror that counts what it is asked for.
type server struct {
	*httptest.Server
	mu    sync.Mutex
	asked []string
}

func serve(t *testing.T, handle http.HandlerFunc) *server {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.asked = append(s.asked, r.URL.Path)
		s.mu.Unlock()
		handle(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *server) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(slices.Values(s.asked))
}

// serveFiles is a mirror with the given files.
func serveFiles(t *testing.T, files map[string][]byte) *server {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		content, found := files[strings.TrimPrefix(r.URL.Path, "/mirror/")]
		if !found {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(content)
	})
}

func kubeFile(p Program) string {
	return fmt.Sprintf("v1.36.3/bin/linux/%s/%s", runtime.GOARCH, p)
}

func etcdFile() string {
	return fmt.Sprintf("envtest-v1.36.2/envtest-v1.36.2-linux-%s.tar.gz", runtime.GOARCH)
}

// archive is a tar.gz with a file in a directory, after another file.
func archive(t *testing.T, name string, content []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	entries := tar.NewWriter(zipped)
	for _, entry := range []struct {
		name    string
		content []byte
	}{{"release/README.md", []byte("Read this.")}, {name, content}} {
		if err := entries.WriteHeader(&tar.Header{Name: entry.name, Mode: 0o644, Size: int64(len(entry.content)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := entries.Write(entry.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(entries.Close(), zipped.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// releases has the files of the control plane: each Kubernetes program is its own name.
func releases(t *testing.T) map[string][]byte {
	t.Helper()
	files := map[string][]byte{etcdFile(): archive(t, "release/etcd", []byte("etcd"))}
	for _, p := range ControlPlane() {
		if p != Etcd {
			files[kubeFile(p)] = []byte(p)
		}
	}
	return files
}

// cloneWithPins is a clone, as working directory, that pins the given files. Builds
// fail there for want of go.
func cloneWithPins(t *testing.T, files map[string][]byte) {
	t.Helper()
	root := fakeClone(t, "v1.36.3")
	sums := map[string]string{}
	for name, content := range files {
		pins := "hack/kubernetes/SHA256SUMS"
		if name == etcdFile() {
			pins = "hack/etcd/SHA512SUMS"
		}
		sums[pins] += checksum(name, content) + "  " + name + "\n"
	}
	for pins, text := range sums {
		if err := os.WriteFile(filepath.Join(root, pins), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(root)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("PATH", "")
}

// checksum is what the publisher of a file computes of it.
func checksum(name string, content []byte) string {
	if strings.HasPrefix(name, "envtest-") {
		return fmt.Sprintf("%x", sha512.Sum512(content))
	}
	return fmt.Sprintf("%x", sha256.Sum256(content))
}

// stored lists what is in the directory for programs besides the lock.
func stored(t *testing.T) []string {
	t.Helper()
	dir, err := Directory()
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if e.Name() != ".lock" {
			names = append(names, e.Name())
		}
	}
	return names
}

func TestEnsureDownloadsWhatIsPinned(t *testing.T) {
	files := releases(t)
	mirror := serveFiles(t, files)
	cloneWithPins(t, files)
	t.Setenv(MirrorVariable, mirror.URL+"/mirror/")

	var out bytes.Buffer
	dir, err := Ensure(t.Context(), &out, ControlPlane()...)
	if err != nil {
		t.Fatalf("%v; it printed %s", err, &out)
	}
	for _, p := range ControlPlane() {
		name := filepath.Join(dir, string(p))
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if string(content) != string(p) {
			t.Errorf("%s holds %q", p, content)
		}
		if info, err := os.Stat(name); err != nil || info.Mode()&0o100 == 0 {
			t.Errorf("%s cannot be executed: %v, %v", p, info.Mode(), err)
		}
		if !strings.Contains(out.String(), "Downloaded "+string(p)+" v") {
			t.Errorf("no line about %s in %q", p, out.String())
		}
	}
	if got, want := len(stored(t)), len(ControlPlane()); got != want {
		t.Errorf("the directory holds %v", stored(t))
	}
	if _, err := Ensure(t.Context(), &out, ControlPlane()...); err != nil {
		t.Error(err)
	}
	if got := mirror.requests(); len(got) != len(files) {
		t.Errorf("the mirror was asked for %q", got)
	}
}

func TestEnsureRejectsAnotherFileThanThePinned(t *testing.T) {
	for _, p := range []Program{APIServer, Etcd} {
		t.Run(string(p), func(t *testing.T) {
			pinned, offered := releases(t), releases(t)
			file := kubeFile(p)
			if p == Etcd {
				file = etcdFile()
			}
			offered[file] = append(offered[file], '!')
			cloneWithPins(t, pinned)
			t.Setenv(MirrorVariable, serveFiles(t, offered).URL+"/mirror")

			var out bytes.Buffer
			_, err := Ensure(t.Context(), &out, p)
			if !errors.Is(err, errChecksum) {
				t.Fatalf("Ensure = %v, want a wrong checksum; it printed %s", err, &out)
			}
			for _, part := range []string{
				file, checksum(file, pinned[file]), checksum(file, offered[file]), MirrorVariable + "=none",
			} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not state %s", err, part)
				}
			}
			if left := stored(t); len(left) > 0 {
				t.Errorf("it left %v", left)
			}
		})
	}
}

func TestEnsureBuildsWhatItCannotDownload(t *testing.T) {
	down := httptest.NewServer(http.NotFoundHandler())
	down.Close()
	partial := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = w.Write([]byte("kube"))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	for name, tc := range map[string]struct{ mirror, reason string }{
		"not found":   {serveFiles(t, nil).URL, "404 Not Found"},
		"unreachable": {down.URL, "connection refused"},
		"partial":     {partial.URL, "unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			cloneWithPins(t, releases(t))
			t.Setenv(MirrorVariable, tc.mirror)
			var out bytes.Buffer
			_, err := Ensure(t.Context(), &out, APIServer, Kubectl)
			if err == nil || !strings.Contains(err.Error(), "go not found") {
				t.Errorf("Ensure = %v, want it to try a build", err)
			}
			if got := strings.Count(out.String(), "\n"); got != 1 || !strings.Contains(out.String(), tc.reason) ||
				!strings.Contains(out.String(), "building from Go modules instead") {
				t.Errorf("it printed %q, want one line with %q", out.String(), tc.reason)
			}
			if left := stored(t); len(left) > 0 {
				t.Errorf("it left %v", left)
			}
		})
	}
}

func TestEnsureAsksForNothingThatIsNotPinned(t *testing.T) {
	files := releases(t)
	mirror := serveFiles(t, files)
	for name, tc := range map[string]struct {
		pins   map[string][]byte
		mirror string
	}{
		"no pins":       {nil, mirror.URL + "/mirror"},
		"downloads off": {files, "none"},
	} {
		t.Run(name, func(t *testing.T) {
			cloneWithPins(t, tc.pins)
			t.Setenv(MirrorVariable, tc.mirror)
			var out bytes.Buffer
			if _, err := Ensure(t.Context(), &out, ControlPlane()...); err == nil || !strings.Contains(err.Error(), "go not found") {
				t.Errorf("Ensure = %v, want it to try a build", err)
			}
			if out.Len() > 0 {
				t.Errorf("it printed %q", &out)
			}
			if got := mirror.requests(); len(got) > 0 {
				t.Errorf("the mirror was asked for %q", got)
			}
		})
	}
}

func TestFetchIsBounded(t *testing.T) {
	content := []byte("kube-apiserver")
	sum := fmt.Sprintf("%x", sha256.Sum256(content))
	endless := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(content)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	large := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) })
	for name, tc := range map[string]struct {
		url    string
		limit  int64
		client http.Client
		want   string
	}{
		"in time": {endless.URL, maxFileSize, http.Client{Timeout: 100 * time.Millisecond}, "Timeout"},
		"in size": {large.URL, int64(len(content)) - 1, http.Client{}, "larger than"},
	} {
		t.Run(name, func(t *testing.T) {
			d := downloader{dir: t.TempDir(), client: &tc.client, limit: tc.limit}
			if _, err := d.fetch(t.Context(), tc.url, sum, APIServer); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("fetch = %v, want %q", err, tc.want)
			}
			if left, err := os.ReadDir(d.dir); err != nil || len(left) > 0 {
				t.Errorf("it left %v, %v", left, err)
			}
		})
	}
}

func TestPinWritesThePublishersChecksums(t *testing.T) {
	files, index := map[string][]byte{}, "releases:\n  v1.36.2:\n"
	sum := func(file string) string { return checksum(file, []byte(file)) }
	for _, arch := range []string{"amd64", "arm64"} {
		for _, p := range kubernetesRelease().programs {
			file := kubernetesRelease().path("v1.36.3", arch, p)
			files[file+".sha256"] = []byte(sum(file))
		}
		file := etcdRelease().path("v3.6.8", arch, Etcd)
		index += fmt.Sprintf("    %s:\n      hash: %s\n      selfLink: x\n", path.Base(file), sum(file))
	}
	files["envtest-releases.yaml"] = []byte(index)
	cloneWithPins(t, nil)
	t.Setenv(MirrorVariable, serveFiles(t, files).URL+"/mirror")

	if err := Pin(t.Context(), &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	for name, count := range map[string]int{"hack/kubernetes/SHA256SUMS": 2 * len(kubernetesRelease().programs), "hack/etcd/SHA512SUMS": 2} {
		pins, err := readPins(name)
		if err != nil {
			t.Fatal(err)
		}
		if len(pins) != count {
			t.Errorf("%s pins %d files, want %d", name, len(pins), count)
		}
		for file, got := range pins {
			if got != sum(file) {
				t.Errorf("the checksum of %s is %s, want %s", file, got, sum(file))
			}
		}
	}
}

// TestCheckedInPins: what this clone can download is pinned for the versions that it uses. A line that
// does not parse would stop every first run.
func TestCheckedInPins(t *testing.T) {
	root, err := findRoot()
	if err != nil {
		t.Fatal(err)
	}
	tools := tools("")
	_, versions, err := directory(root, tools)
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range tools {
		if tool.release == nil {
			continue
		}
		r := tool.release()
		pins, err := readPins(filepath.Join(root, tool.directory, r.pins))
		if err != nil {
			t.Fatal(err)
		}
		for _, arch := range []string{"amd64", "arm64"} {
			for _, p := range r.programs {
				if file := r.path(versions[tool.module], arch, p); pins[file] == "" {
					t.Errorf("%s %s for %s is not pinned", p, versions[tool.module], arch)
				}
			}
		}
	}
}
