package main

import (
	"bufio"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
)

// subject is what an SBOM describes.
type subject struct {
	archive string // file
	kind    cyclonedx.ComponentType
	name    string
	version string
	program string // file of the Go program
	root    string // directory of the Debian packages; empty: none
	created time.Time
}

func newBOM(s subject) (*cyclonedx.BOM, error) {
	sum, err := sumOf(s.archive)
	if err != nil {
		return nil, err
	}
	components, err := modules(s.program)
	if err != nil {
		return nil, err
	}
	if s.root != "" {
		packages, err := debianPackages(s.root)
		if err != nil {
			return nil, err
		}
		components = append(components, packages...)
	}
	slices.SortFunc(components, func(a, b cyclonedx.Component) int { return strings.Compare(a.BOMRef, b.BOMRef) })

	bom := cyclonedx.NewBOM()
	bom.SerialNumber = serialNumber(sum)
	bom.Metadata = &cyclonedx.Metadata{
		Timestamp: s.created.Format(time.RFC3339),
		Component: &cyclonedx.Component{
			BOMRef: s.name, Type: s.kind, Name: s.name, Version: s.version,
			Hashes: &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum)}},
		},
	}
	bom.Components = &components
	return bom, nil
}

func sumOf(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return nil, err
	}
	return sum.Sum(nil), nil
}

// serialNumber is a UUID of version 8, whose bits are free, derived from the archive.
func serialNumber(sum []byte) string {
	u := slices.Clone(sum[:16])
	u[6] = u[6]&0x0f | 0x80
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// modules lists the modules of a Go program, including the standard library, but without its
// own, which is the subject.
func modules(program string) ([]cyclonedx.Component, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, fmt.Errorf("read the build information: %w", err)
	}
	out := []cyclonedx.Component{library("std", strings.TrimPrefix(info.GoVersion, "go"), "golang", "")}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		component := library(module.Path, module.Version, "golang", "?type=module")
		hash, err := moduleHash(module)
		if err != nil {
			return nil, err
		}
		component.Hashes = &[]cyclonedx.Hash{hash}
		out = append(out, component)
	}
	return out, nil
}

// moduleHash is the sum of go.sum in hexadecimal, as cyclonedx-gomod gives it. A module
// without a sum was built from a local directory.
func moduleHash(module *debug.Module) (cyclonedx.Hash, error) {
	encoded, found := strings.CutPrefix(module.Sum, "h1:")
	sum, err := base64.StdEncoding.DecodeString(encoded)
	if !found || err != nil {
		return cyclonedx.Hash{}, fmt.Errorf("module %s %s has the sum %q; build it from a released version, not from a directory", module.Path, module.Version, module.Sum)
	}
	return cyclonedx.Hash{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum)}, nil
}

// debianPackages lists the packages that debian-root.sh unpacked.
func debianPackages(root string) ([]cyclonedx.Component, error) {
	release, err := readFields(filepath.Join(root, "etc/os-release"), "=")
	if err != nil {
		return nil, fmt.Errorf("read the Debian release: %w", err)
	}
	distribution := release["ID"] + "-" + strings.Trim(release["VERSION_ID"], `"`)
	const status = "var/lib/dpkg/status.d"
	entries, err := os.ReadDir(filepath.Join(root, status))
	if err != nil {
		return nil, fmt.Errorf("list the packages: %w", err)
	}
	var out []cyclonedx.Component
	for _, entry := range entries {
		fields, err := readFields(filepath.Join(root, status, entry.Name()), ": ")
		if err != nil {
			return nil, fmt.Errorf("read the package %s: %w", entry.Name(), err)
		}
		name, version := fields["Package"], fields["Version"]
		if name == "" || version == "" {
			return nil, fmt.Errorf("%s/%s names no package or no version", status, entry.Name())
		}
		qualifiers := url.Values{"arch": {fields["Architecture"]}, "distro": {distribution}}
		if source, _, _ := strings.Cut(fields["Source"], " "); source != "" {
			qualifiers.Set("upstream", source)
		}
		out = append(out, library(name, version, "deb/debian", "?"+qualifiers.Encode()))
	}
	if len(out) == 0 {
		return nil, errors.New("the root file system has no packages: " + status + " is empty")
	}
	return out, nil
}

func library(name, version, namespace, qualifiers string) cyclonedx.Component {
	// Some readers of package URLs take a "+" for a space.
	escaped := strings.ReplaceAll(url.PathEscape(version), "+", "%2B")
	purl := "pkg:" + namespace + "/" + name + "@" + escaped + qualifiers
	return cyclonedx.Component{BOMRef: purl, Type: cyclonedx.ComponentTypeLibrary, Name: name, Version: version, PackageURL: purl}
}

// readFields reads lines KEY SEPARATOR VALUE, without continuation lines.
func readFields(path, separator string) (map[string]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	out := map[string]string{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if key, value, found := strings.Cut(lines.Text(), separator); found && !strings.HasPrefix(key, " ") {
			out[key] = value
		}
	}
	if err := lines.Err(); err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return out, nil
}
