package plugin_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// manifest is what krew reads.
type manifest struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Version          string     `json:"version"`
		Homepage         string     `json:"homepage"`
		ShortDescription string     `json:"shortDescription"`
		Description      string     `json:"description"`
		Caveats          string     `json:"caveats"`
		Platforms        []platform `json:"platforms"`
	} `json:"spec"`
}

type platform struct {
	Selector struct {
		MatchLabels map[string]string `json:"matchLabels"`
	} `json:"selector"`
	URI    string `json:"uri"`
	SHA256 string `json:"sha256"`
	Bin    string `json:"bin"`
}

// TestPlugin builds for all platforms, which takes minutes the first time, or for
// those in PLUGIN_PLATFORMS.
func TestPlugin(t *testing.T) {
	t.Parallel()
	directory := build(t)
	text, err := os.ReadFile(filepath.Join(directory, "nodeproxy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var m manifest
	if err := yaml.UnmarshalStrict(text, &m); err != nil {
		t.Fatal(err)
	}
	t.Run("manifest", func(t *testing.T) { check(t, &m) })
	for _, p := range m.Spec.Platforms {
		t.Run(p.Selector.MatchLabels["os"]+"-"+p.Selector.MatchLabels["arch"], func(t *testing.T) { checkArchive(t, directory, p) })
	}
	t.Run("same again", func(t *testing.T) {
		archive := archiveHere()
		again := build(t, "PLUGIN_PLATFORMS="+runtime.GOOS+"/"+runtime.GOARCH)
		for _, name := range []string{archive, bill(archive)} {
			if sum(t, filepath.Join(directory, name)) != sum(t, filepath.Join(again, name)) {
				t.Errorf("%s differs after another build", name)
			}
		}
	})
	t.Run("kubectl", func(t *testing.T) { runByKubectl(t, directory) })
}

// TestVersions: hack/plugin.sh warns about versions that krew rejects.
func TestVersions(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile("../../hack/plugin.sh")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^semver='(.*)'$`).FindSubmatch(script)
	if found == nil {
		t.Fatal("hack/plugin.sh has no line semver='…'")
	}
	taken := regexp.MustCompile(string(found[1]))
	for version, want := range map[string]bool{
		"v0.1.0": true, "v1.20.3-rc.1": true, "v0.1.0-3-gabcdef0-dirty": true, "v1.2.3+build.5": true,
		"1.2.3": false, "v1.2": false, "v1.2.3junk": false, "v1.2.3-": false, "v1.2.3-rc..1": false, "v01.2.3": false, "abcdef0": false,
	} {
		if taken.MatchString(version) != want {
			t.Errorf("%q is taken: %t", version, !want)
		}
	}
}

func build(t *testing.T, env ...string) string {
	t.Helper()
	directory := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "hack/plugin.sh")
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "VERSION=v0.1.0", "PLUGIN_OUTPUT="+directory, "PLUGIN_URL=https://downloads.example.com/v0.1.0")
	cmd.Env = append(cmd.Env, env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("hack/plugin.sh: %v\n%s", err, out)
	}
	return directory
}

// check applies krew's rules: names are in kebab case, without the prefix "kube"; versions
// are semantic ones with a v; a short description is one line of at most 50 characters
// without a full stop; selectors of platforms are unique.
func check(t *testing.T, m *manifest) {
	if m.APIVersion != "krew.googlecontainertools.github.com/v1alpha2" || m.Kind != "Plugin" {
		t.Errorf("it is %s %s", m.APIVersion, m.Kind)
	}
	if m.Metadata.Name != "nodeproxy" || !regexp.MustCompile(`^[a-z][a-z0-9-]*$`).MatchString(m.Metadata.Name) {
		t.Errorf("name %q", m.Metadata.Name)
	}
	if m.Spec.Version != "v0.1.0" {
		t.Errorf("version %q", m.Spec.Version)
	}
	if u, err := url.Parse(m.Spec.Homepage); err != nil || u.Scheme != "https" {
		t.Errorf("homepage %q", m.Spec.Homepage)
	}
	short := m.Spec.ShortDescription
	if short == "" || len(short) > 50 || strings.ContainsAny(short, "\n") || strings.HasSuffix(short, ".") {
		t.Errorf("shortDescription %q", short)
	}
	if m.Spec.Description == "" || m.Spec.Caveats == "" {
		t.Error("description or caveats are missing")
	}
	var got []string
	for _, p := range m.Spec.Platforms {
		got = append(got, p.Selector.MatchLabels["os"]+"/"+p.Selector.MatchLabels["arch"])
		if len(p.Selector.MatchLabels) != 2 || !strings.HasPrefix(p.URI, "https://downloads.example.com/v0.1.0/") {
			t.Errorf("platform %v", p)
		}
	}
	slices.Sort(got)
	want := []string{"darwin/amd64", "darwin/arm64", "linux/amd64", "linux/arm64", "windows/amd64", "windows/arm64"}
	if chosen := strings.Fields(os.Getenv("PLUGIN_PLATFORMS")); len(chosen) > 0 {
		want = slices.Sorted(slices.Values(chosen))
	}
	if !slices.Equal(got, want) {
		t.Errorf("platforms %v", got)
	}
}

func checkArchive(t *testing.T, directory string, p platform) {
	name := filepath.Join(directory, path.Base(p.URI))
	if got := sum(t, name); got != p.SHA256 {
		t.Errorf("sha256 %s, and the manifest has %s", got, p.SHA256)
	}
	if bin := "kubectl-nodeproxy"; p.Bin != bin && (p.Bin != bin+".exe" || p.Selector.MatchLabels["os"] != "windows") {
		t.Errorf("bin %q", p.Bin)
	}
	files := unpack(t, name)
	if len(files[p.Bin]) == 0 || !bytes.Contains(files["LICENSE"], []byte("Apache License")) || len(files["kubectl_complete-nodeproxy"]) == 0 || len(files) != 3 {
		t.Errorf("the archive has %d files, or not the right ones", len(files))
	}
	checkBill(t, bill(name), p.SHA256, files[p.Bin])
}

// archiveHere is the name of the archive for this machine.
func archiveHere() string {
	return "kubectl-nodeproxy_" + runtime.GOOS + "_" + runtime.GOARCH + ".tar.gz"
}

// bill is the name of the bill of materials beside an archive.
func bill(archive string) string { return strings.TrimSuffix(archive, ".tar.gz") + ".cdx.json" }

// checkBill compares a bill of materials with the program in the archive. hack/images/sbom
// has further tests.
func checkBill(t *testing.T, name, archiveSum string, program []byte) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Metadata struct {
			Component struct {
				Version string `json:"version"`
				Hashes  []struct {
					Content string `json:"content"`
				} `json:"hashes"`
			} `json:"component"`
		} `json:"metadata"`
		Components []struct {
			Name    string `json:"name"`
			Version string `json:"version"`
		} `json:"components"`
	}
	if err := yaml.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	subject := got.Metadata.Component
	if subject.Version != "v0.1.0" || len(subject.Hashes) != 1 || subject.Hashes[0].Content != archiveSum {
		t.Errorf("%s is about %+v, want version v0.1.0 of the archive with the sum %s", name, subject, archiveSum)
	}
	info, err := buildinfo.Read(bytes.NewReader(program))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"std " + strings.TrimPrefix(info.GoVersion, "go")}
	for _, module := range info.Deps {
		want = append(want, module.Path+" "+module.Version)
	}
	var listed []string
	for _, c := range got.Components {
		listed = append(listed, c.Name+" "+c.Version)
	}
	slices.Sort(want)
	slices.Sort(listed)
	if !slices.Equal(listed, want) {
		t.Errorf("%s lists\n%q\nand the program consists of\n%q", name, listed, want)
	}
}

func sum(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	hash := sha256.Sum256(text)
	return hex.EncodeToString(hash[:])
}

func unpack(t *testing.T, name string) map[string][]byte {
	t.Helper()
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }() // only read from
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for archive := tar.NewReader(unzipped); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(archive); err != nil {
			t.Fatal(err)
		}
		if executable := header.FileInfo().Mode()&0o111 != 0; executable != (header.Name != "LICENSE") {
			t.Errorf("mode of %s: %v", header.Name, header.FileInfo().Mode())
		}
	}
}

// runByKubectl: the real kubectl finds the plugin and its completion on PATH.
func runByKubectl(t *testing.T, directory string) {
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		t.Fatal("KUBEBUILDER_ASSETS is not set, so there is no kubectl to test with: run make test-api, which builds one and sets it")
	}
	bin := t.TempDir()
	for name, text := range unpack(t, filepath.Join(directory, archiveHere())) {
		if err := os.WriteFile(filepath.Join(bin, name), text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for want, args := range map[string][]string{
		"kubectl nodeproxy version v0.1.0\n": {"nodeproxy", "--version"},
		"status\tSummarize the cluster":      {"__complete", "nodeproxy", "st"},
	} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(assets, "kubectl"), args...)
		cmd.Env = append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"), "KUBECONFIG="+filepath.Join(bin, "none"))
		out, err := cmd.Output()
		if err != nil || !strings.HasPrefix(string(out), want) {
			t.Errorf("kubectl %v: %v, %q", args, err, out)
		}
	}
}
