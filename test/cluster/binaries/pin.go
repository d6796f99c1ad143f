package binaries

import (
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// maxSumsSize bounds a publisher's file of checksums.
const maxSumsSize = 1 << 20

// Pin writes the publishers' checksums of the versions in the tools' go.mod files
// to their SHA256SUMS files. Look at the change before you commit it.
func Pin(ctx context.Context, out io.Writer) error {
	root, err := findRoot()
	if err != nil {
		return err
	}
	_, versions, err := directory(root)
	if err != nil {
		return err
	}
	d := newDownloader(root, "", out)
	for _, t := range tools() {
		if t.release == nil {
			continue
		}
		text, err := d.sums(ctx, t.release(), versions[t.module])
		if err != nil {
			return fmt.Errorf("pinning the checksums of %s: %w", t.module, err)
		}
		name := filepath.Join(root, t.directory, checksumFile)
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			return fmt.Errorf("pinning the checksums of %s: %w", t.module, err)
		}
		fmt.Fprintf(out, "Wrote %s.\n", name)
	}
	return nil
}

// sums returns the checksums of a release's files in the format of sha256sum.
func (d downloader) sums(ctx context.Context, r release, version string) (string, error) {
	var text strings.Builder
	for _, arch := range []string{"amd64", "arm64"} {
		for _, p := range r.programs {
			file := r.path(version, arch, p)
			sum, err := d.publishedSum(ctx, d.url(r, r.sums(file)), path.Base(file))
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&text, "%s  %s\n", sum, file)
		}
	}
	return text.String(), nil
}

// publishedSum returns the checksum of a file from a publisher's list, or from a
// publisher's file with nothing but the checksum.
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
	sums, err := parseSums(string(text))
	if err != nil {
		return "", fmt.Errorf("%s: %w", url, err)
	}
	sum, found := sums[name]
	if !found {
		return "", fmt.Errorf("%s has no checksum of %s", url, name)
	}
	return sum, nil
}
