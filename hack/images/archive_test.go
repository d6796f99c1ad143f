package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/name"
	oci "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// A version as git describes a commit with changes that are not committed.
const (
	version  = "v0.1.0-3-gabcdef0-dirty"
	registry = "registry.example/some/directory"
)

// temporary is the directory that goes at the end, if there is one.
var temporary string

// directory holds the archives that hack/images.sh writes, once for all tests.
var directory = sync.OnceValues(func() (string, error) {
	temp, err := os.MkdirTemp("", "nodeproxy-images-")
	if err != nil {
		return "", err
	}
	temporary = temp
	return temp, makeImages(temp)
})

func TestMain(m *testing.M) {
	code := m.Run()
	if temporary != "" {
		_ = os.RemoveAll(temporary)
	}
	os.Exit(code)
}

// makeImages prints what is reported about pinned packages, after the mark by which
// hack/test.sh finds lines to show. A mirror that has dropped a pinned version is no
// reason for tests to fail.
func makeImages(out string, variables ...string) error {
	cmd := exec.Command("../images.sh")
	cmd.Env = append(os.Environ(), "OUT="+out, "VERSION="+version, "IMAGE_REGISTRY="+registry, "STALE_PACKAGES=warn", "REFRESH=")
	cmd.Env = append(cmd.Env, variables...)
	printed, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("hack/images.sh: %w\n%s", err, printed)
	}
	for line := range strings.Lines(string(printed)) {
		if strings.HasPrefix(line, "WARNING: ") || strings.HasPrefix(line, "NOTE: ") {
			fmt.Print("| " + line)
		}
	}
	return nil
}

// The second time nothing of the first one is used, not even packages.
func TestSameInputsSameBytes(t *testing.T) {
	first := made(t)
	second := t.TempDir()
	goCache, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := makeImages(second, "XDG_CACHE_HOME="+t.TempDir(), "GOCACHE="+strings.TrimSpace(string(goCache))); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"nodeproxy-agent", "nodeproxy-controller"} {
		for _, file := range []string{program + ".tar", program + ".cdx.json"} {
			one, oneErr := os.ReadFile(filepath.Join(first, file))
			two, twoErr := os.ReadFile(filepath.Join(second, file))
			if err := errors.Join(oneErr, twoErr); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(one, two) {
				t.Errorf("%s differs when it is written twice", file)
			}
		}
	}
}

// TestBillsOfMaterials compares each bill with the image beside it.
func TestBillsOfMaterials(t *testing.T) {
	for program, debian := range map[string]bool{"nodeproxy-agent": true, "nodeproxy-controller": false} {
		t.Run(program, func(t *testing.T) {
			root := t.TempDir()
			unpack(t, mutate.Extract(openImage(t, program)), root)
			info, err := buildinfo.ReadFile(filepath.Join(root, program))
			if err != nil {
				t.Fatal(err)
			}
			want := []string{"pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go")}
			for _, module := range info.Deps {
				sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(module.Sum, "h1:"))
				if err != nil {
					t.Fatal(err)
				}
				want = append(want, fmt.Sprintf("pkg:golang/%s@%s %x", module.Path, module.Version, sum))
			}
			if debian {
				for name, version := range packagesIn(t, root) {
					want = append(want, "pkg:deb/debian/"+name+"@"+version)
				}
			}
			slices.Sort(want)
			if got := billed(t, filepath.Join(made(t), program)); !slices.Equal(got, want) {
				t.Errorf("the bill lists\n%s\nand the image has\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

// billed reads the bill of an archive: URLs of packages without qualifiers, and sums.
func billed(t *testing.T, path string) []string {
	t.Helper()
	file, err := os.Open(path + ".cdx.json")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var bom cyclonedx.BOM
	if err := cyclonedx.NewBOMDecoder(file, cyclonedx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	archive, err := os.ReadFile(path + ".tar")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := (*bom.Metadata.Component.Hashes)[0].Value, fmt.Sprintf("%x", sha256.Sum256(archive)); got != want || bom.Metadata.Component.Version != version {
		t.Errorf("%s.cdx.json is about %s with the sum %s; want %s of %s", path, bom.Metadata.Component.Version, got, want, version)
	}
	var out []string
	for _, c := range *bom.Components {
		line, _, _ := strings.Cut(strings.ReplaceAll(c.PackageURL, "%2B", "+"), "?")
		if c.Hashes != nil {
			line += " " + (*c.Hashes)[0].Value
		}
		out = append(out, line)
	}
	slices.Sort(out)
	return out
}

// packagesIn returns the versions of the Debian packages in a root file system.
func packagesIn(t *testing.T, root string) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, "var/lib/dpkg/status.d/*"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no packages: %v", err)
	}
	out := map[string]string{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(path)] = string(regexp.MustCompile(`(?m)^Version: (.*)$`).FindSubmatch(text)[1])
	}
	return out
}

func TestControllerIsOneProgram(t *testing.T) {
	image := openImage(t, "nodeproxy-controller")
	if got, want := list(t, mutate.Extract(image)), []string{"nodeproxy-controller 755"}; !slices.Equal(got, want) {
		t.Errorf("the image has %q, want %q", got, want)
	}
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if got := file.Config.User; got != "65532:65532" {
		t.Errorf("the controller runs as %q", got)
	}
	checkLabels(t, file, "nodeproxy-controller")
}

func TestAgentHasWhatItRuns(t *testing.T) {
	image := openImage(t, "nodeproxy-agent")
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	checkLabels(t, file, "nodeproxy-agent")

	names := list(t, mutate.Extract(image))
	for _, never := range []string{`(^|/)s?bin/(bash|dash|sh|perl|apt|apt-get|dpkg|modprobe|kmod|ipset)( |$)`, `/lib(ssl|crypto|kmod|ipset)\.so`, `^usr/share/(man|locale)/.`, ` [4-7][0-7][0-7][0-7]$`} {
		if i := slices.IndexFunc(names, regexp.MustCompile(never).MatchString); i >= 0 {
			t.Errorf("the image has %s; want nothing like %s", names[i], never)
		}
	}
	for _, pkg := range lockedNames(t, "packages."+debianArchitecture(file.Architecture)+".lock") {
		if !slices.Contains(names, "usr/share/doc/"+pkg+"/copyright 644") {
			t.Errorf("the license of %s is not in the image", pkg)
		}
		if !slices.Contains(names, "var/lib/dpkg/status.d/"+pkg+" 644") {
			t.Errorf("the version of %s is not given to scanners", pkg)
		}
	}
}

// debianArchitecture is the name in the lock's file name, as debian-root.sh has it.
func debianArchitecture(goarch string) string {
	if name, differs := map[string]string{"386": "i386", "arm": "armhf", "ppc64le": "ppc64el"}[goarch]; differs {
		return name
	}
	return goarch
}

// TestImageHasThePinnedPackages compares the image with the lock, of which the mirror may
// have dropped versions: hack/images.sh then warns, and so does this.
func TestImageHasThePinnedPackages(t *testing.T) {
	image := openImage(t, "nodeproxy-agent")
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	unpack(t, mutate.Extract(image), root)
	lock := "packages." + debianArchitecture(file.Architecture) + ".lock"
	text, err := os.ReadFile(lock)
	if err != nil {
		t.Fatal(err)
	}
	packages := packagesIn(t, root)
	if got, want := slices.Sorted(maps.Keys(packages)), lockedNames(t, lock); !slices.Equal(got, want) {
		t.Errorf("the image has the packages %q, and %s pins %q", got, lock, want)
	}
	for name, version := range packages {
		if !strings.Contains(string(text), "\n"+name+" "+version+" ") {
			fmt.Printf("| WARNING: the image has %s %s, which %s does not pin; run make images REFRESH=1 and commit the file.\n", name, version, lock)
		}
	}
}

func TestAgentRunsFromItsImage(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("chroot needs root")
	}
	root := t.TempDir()
	unpack(t, mutate.Extract(openImage(t, "nodeproxy-agent")), root)
	for command, want := range map[string]string{
		"/usr/sbin/iptables-nft":             "(nf_tables)",
		"/usr/sbin/iptables-nft-save":        "(nf_tables)",
		"/usr/sbin/iptables-nft-restore":     "(nf_tables)",
		"/usr/sbin/ip6tables-nft":            "(nf_tables)",
		"/usr/sbin/ip6tables-nft-save":       "(nf_tables)",
		"/usr/sbin/ip6tables-nft-restore":    "(nf_tables)",
		"/usr/sbin/iptables-legacy":          "(legacy)",
		"/usr/sbin/iptables-legacy-save":     "(legacy)",
		"/usr/sbin/iptables-legacy-restore":  "(legacy)",
		"/usr/sbin/ip6tables-legacy":         "(legacy)",
		"/usr/sbin/ip6tables-legacy-save":    "(legacy)",
		"/usr/sbin/ip6tables-legacy-restore": "(legacy)",
		"/usr/sbin/iptables":                 "(nf_tables)",
		"/usr/sbin/ip6tables-restore":        "(nf_tables)",
	} {
		if got := runIn(t, root, command, "--version"); !strings.Contains(got, want) {
			t.Errorf("%s --version prints %q, want %s", command, got, want)
		}
	}
	if got := runIn(t, root, "/nodeproxy-agent", "--help"); !strings.Contains(got, "nodeproxy-agent cleanup") {
		t.Errorf("/nodeproxy-agent --help prints %q", got)
	}
	// Extensions are libraries that iptables loads by name.
	for match, want := range map[string]string{"comment": "--comment", "conntrack": "--ctstate", "set": "--match-set",
		"recent": "--rcheck", "statistic": "--probability", "addrtype": "--dst-type"} {
		if got := runIn(t, root, "/usr/sbin/iptables-legacy", "-m", match, "--help"); !strings.Contains(got, want) {
			t.Errorf("iptables-legacy -m %s --help prints %q", match, got)
		}
	}
}

// made returns the directory with the archives.
func made(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("mmdebstrap"); err != nil && os.Geteuid() != 0 {
		t.Skip("installing mmdebstrap needs root")
	}
	path, err := directory()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func openImage(t *testing.T, program string) oci.Image {
	t.Helper()
	from := made(t)
	tag, err := name.NewTag(registry + "/" + program + ":" + version)
	if err != nil {
		t.Fatal(err)
	}
	image, err := tarball.ImageFromPath(filepath.Join(from, program+".tar"), &tag)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func checkLabels(t *testing.T, file *oci.ConfigFile, title string) {
	t.Helper()
	if file.OS != "linux" || file.Architecture == "" || !slices.Equal(file.Config.Entrypoint, []string{"/" + title}) {
		t.Errorf("%s: for %s/%s, runs %q", title, file.OS, file.Architecture, file.Config.Entrypoint)
	}
	labels := file.Config.Labels
	if labels["org.opencontainers.image.title"] != title || labels["org.opencontainers.image.version"] != version ||
		labels["org.opencontainers.image.description"] == "" || labels["org.opencontainers.image.created"] == "" {
		t.Errorf("%s has the labels %q", title, labels)
	}
}

// describe is an entry's name with its mode, or with what it points to.
func describe(header *tar.Header) string {
	if header.Typeflag == tar.TypeSymlink {
		return header.Name + " -> " + header.Linkname
	}
	return fmt.Sprintf("%s %o", header.Name, header.Mode)
}

func unpack(t *testing.T, from io.ReadCloser, root string) {
	t.Helper()
	defer from.Close()
	tar := exec.Command("tar", "--extract", "--directory", root)
	tar.Stdin = from
	if printed, err := tar.CombinedOutput(); err != nil {
		t.Fatalf("unpack the image: %v\n%s", err, printed)
	}
}

// runIn runs a program with the image as its root and returns what it prints.
func runIn(t *testing.T, root, command string, args ...string) string {
	t.Helper()
	cmd := exec.Command(command, args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	out, err := cmd.CombinedOutput()
	return string(out) + cmp.Or(fmt.Sprint(err), "")
}
