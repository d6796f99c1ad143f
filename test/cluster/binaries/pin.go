package binaries

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// maxSumsSize bounds a publisher's file of checksums.
const maxSumsSize = 1 << 20

// Pin writes the publishers' checksums of the versions in the tools' go.mod files
// to the tools' files of pins. Look at the change before you commit it.
func Pin(ctx context.Context, out io.Writer) error {
	root, err := findRoot()
	if err != nil {
		return err
	}
	tools := tools(os.Getenv(KubernetesVariable))
	_, versions, err := directory(root, tools)
	if err != nil {
		return err
	}
	d := newDownloader(root, "", out)
	for _, t := range tools {
		if t.release == nil {
			continue
		}
		r := t.release()
		text, err := d.sums(ctx, r, versions[t.module])
		if err != nil {
			return fmt.Errorf("pinning the checksums of %s: %w", t.module, err)
		}
		name := filepath.Join(root, t.directory, r.pins)
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			return fmt.Errorf("pinning the checksums of %s: %w", t.module, err)
		}
		fmt.Fprintf(out, "Wrote %s.\n", name)
	}
	return nil
}

// sums returns the checksums of a release's files in the format of sha256sum and sha512sum.
func (d downloader) sums(ctx context.Context, r release, version string) (string, error) {
	var text strings.Builder
	for _, arch := range []string{"amd64", "arm64"} {
		for _, p := range r.programs {
			file := r.path(version, arch, p)
			if file == "" {
				return "", fmt.Errorf("it is not known which release has %s %s", p, version)
			}
			sum, err := d.publishedSum(ctx, d.url(cmp.Or(r.sumsBase, r.base), r.sums(file)), path.Base(file))
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&text, "%s  %s\n", sum, file)
		}
	}
	return text.String(), nil
}

// publishedSum returns the checksum of a file from a publisher's list, in the format of
// sha256sum or of envtest, or from a publisher's file with nothing but the checksum.
func (d downloader) publishedSum(ctx context.Context, url, name string) (string, error) {
	body, err := d.get(ctx, url)
	if err != nil {
		return "", err
	}
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, maxSumsSize))
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", url, err)
	}
	if sum := strings.TrimSpace(string(text)); isSum(sum) {
		return sum, nil
	}
	parse := parseSums
	if path.Ext(url) == ".yaml" {
		parse = parseIndex
	}
	sums, err := parse(string(text))
	if err != nil {
		return "", fmt.Errorf("%s: %w", url, err)
	}
	sum, found := sums[name]
	if !found {
		return "", fmt.Errorf("%s has no checksum of %s", url, name)
	}
	return sum, nil
}

// parseIndex reads envtest-releases.yaml.
func parseIndex(text string) (map[string]string, error) {
	var index struct {
		Releases map[string]map[string]struct {
			Hash string `json:"hash"`
		} `json:"releases"`
	}
	if err := yaml.Unmarshal([]byte(text), &index); err != nil {
		return nil, err
	}
	sums := map[string]string{}
	for _, files := range index.Releases {
		for name, file := range files {
			if !isSum(file.Hash) {
				return nil, fmt.Errorf("%q is not a checksum of %s", file.Hash, name)
			}
			sums[name] = file.Hash
		}
	}
	return sums, nil
}
