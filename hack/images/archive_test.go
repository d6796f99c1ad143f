package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	oci "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// A version as git describes a commit with changes that are not committed.
const (
	version  = "v0.1.0-3-gabcdef0-dirty"
	registry = "registry.example/some/folder"
)

// temporary is the folder that goes at the end, if there is one.
var temporary string

// folder holds the archives that hack/images.sh writes, once for all tests.
var folder = sync.OnceValues(func() (string, error) {
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

func makeImages(out string) error {
	cmd := exec.Command("../images.sh")
	cmd.Env = append(os.Environ(), "OUT="+out, "VERSION="+version, "IMAGE_REGISTRY="+registry)
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("hack/images.sh: %w\n%s", err, said)
	}
	return nil
}

func TestSameInputsSameBytes(t *testing.T) {
	first := made(t)
	second := t.TempDir()
	if err := makeImages(second); err != nil {
		t.Fatal(err)
	}
	for _, archive := range []string{"nodeproxy-agent.tar", "nodeproxy-controller.tar"} {
		one, oneErr := os.ReadFile(filepath.Join(first, archive))
		two, twoErr := os.ReadFile(filepath.Join(second, archive))
		if err := errors.Join(oneErr, twoErr); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(one, two) {
			t.Errorf("%s differs when it is written twice", archive)
		}
	}
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
	for _, never := range []string{`(^|/)s?bin/(bash|dash|sh|perl|apt|apt-get|dpkg)( |$)`, `^usr/share/(man|locale)/.`, ` [4-7][0-7][0-7][0-7]$`} {
		if i := slices.IndexFunc(names, regexp.MustCompile(never).MatchString); i >= 0 {
			t.Errorf("the image has %s; want nothing like %s", names[i], never)
		}
	}
	for _, pkg := range []string{"iptables", "ipset", "kmod", "libc6", "libssl3"} {
		if !slices.Contains(names, "usr/share/doc/"+pkg+"/copyright 644") && !slices.Contains(names, "usr/share/doc/"+pkg+" -> lib"+pkg+"2") {
			t.Errorf("the licence of %s is not in the image", pkg)
		}
		if !slices.Contains(names, "var/lib/dpkg/status.d/"+pkg+" 644") {
			t.Errorf("the version of %s is not told to scanners", pkg)
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
		"/usr/sbin/ipset":                    "ipset v",
		"/sbin/modprobe":                     "kmod version",
	} {
		if got := runIn(t, root, command, "--version"); !strings.Contains(got, want) {
			t.Errorf("%s --version says %q, want %s", command, got, want)
		}
	}
	if got := runIn(t, root, "/nodeproxy-agent", "--help"); !strings.Contains(got, "nodeproxy-agent cleanup") {
		t.Errorf("/nodeproxy-agent --help says %q", got)
	}
	// Extensions are libraries that iptables loads by name.
	for match, want := range map[string]string{"comment": "--comment", "conntrack": "--ctstate", "set": "--match-set",
		"recent": "--rcheck", "statistic": "--probability", "addrtype": "--dst-type"} {
		if got := runIn(t, root, "/usr/sbin/iptables-legacy", "-m", match, "--help"); !strings.Contains(got, want) {
			t.Errorf("iptables-legacy -m %s --help says %q", match, got)
		}
	}
}

// made returns the folder with the archives.
func made(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("mmdebstrap"); err != nil && os.Geteuid() != 0 {
		t.Skip("installing mmdebstrap needs root")
	}
	path, err := folder()
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
	if said, err := tar.CombinedOutput(); err != nil {
		t.Fatalf("unpack the image: %v\n%s", err, said)
	}
}

// runIn runs a program with the image as its root and returns what it says.
func runIn(t *testing.T, root, command string, args ...string) string {
	t.Helper()
	cmd := exec.Command(command, args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	out, err := cmd.CombinedOutput()
	return string(out) + cmp.Or(fmt.Sprint(err), "")
}
