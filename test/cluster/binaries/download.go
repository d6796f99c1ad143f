package binaries

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// MirrorVariable names the environment variable with the URL of a mirror of the
// release files. The value "none" turns downloads off.
const MirrorVariable = "NODEPROXY_RELEASES"

const (
	// A machine without internet access loses this much.
	connectTimeout = 3 * time.Second
	// A link that needs longer than this for a file is hardly faster than a build.
	fileTimeout = 5 * time.Minute
	maxFileSize = 512 << 20
)

// errChecksum means that a server returned another file than the pinned one.
var errChecksum = errors.New("wrong checksum")

// release states where the publisher of a tool keeps its programs.
type release struct {
	programs []Program                              // that run on any Linux of their architecture
	base     string                                 // URL that the path is relative to
	path     func(v, arch string, p Program) string // path of the file with program p; "": there is none
	sums     func(file string) string               // path of the publisher's checksum of a file
	sumsBase string                                 // that sums are relative to, instead of base
	// pins is the file, in the tool's directory, that has the checksums of the files that may be
	// downloaded, in the format of sha256sum and sha512sum.
	pins string
}

func kubernetesRelease() release {
	return release{
		// kubelet is missing: its release file is linked to the C library.
		programs: []Program{APIServer, ControllerManager, KubeProxy, Scheduler, Kubectl},
		base:     "https://dl.k8s.io/release",
		path:     func(v, arch string, p Program) string { return path.Join(v, "bin/linux", arch, string(p)) },
		sums:     func(file string) string { return file + ".sha256" },
		pins:     "SHA256SUMS",
	}
}

// etcdRelease is that of envtest's programs, of which etcd is one: their checksums are published in the
// repository of controller-tools, those of etcd's own releases only beside the files.
func etcdRelease() release {
	with := map[string]string{"v3.6.8": "envtest-v1.36.2"} // by the version of etcd
	return release{
		programs: []Program{Etcd},
		base:     "https://github.com/kubernetes-sigs/controller-tools/releases/download",
		path: func(v, arch string, _ Program) string {
			of := with[v]
			if of == "" {
				return ""
			}
			return path.Join(of, fmt.Sprintf("%s-linux-%s.tar.gz", of, arch))
		},
		sums:     func(string) string { return "envtest-releases.yaml" },
		sumsBase: "https://raw.githubusercontent.com/kubernetes-sigs/controller-tools/main",
		pins:     "SHA512SUMS",
	}
}

// downloader fetches release files whose checksums are pinned.
type downloader struct {
	root   string
	dir    string
	mirror string // instead of the publisher's URL
	client *http.Client
	limit  int64 // size of a file
	out    io.Writer
}

func newDownloader(root, dir string, out io.Writer) downloader {
	return downloader{root: root, dir: dir, mirror: os.Getenv(MirrorVariable), client: newClient(), limit: maxFileSize, out: out}
}

func newClient() *http.Client {
	dialer := net.Dialer{Timeout: connectTimeout}
	return &http.Client{
		Timeout: fileTimeout,
		Transport: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           dialer.DialContext,
			TLSHandshakeTimeout:   connectTimeout,
			ResponseHeaderTimeout: 10 * time.Second,
			ForceAttemptHTTP2:     true,
			DisableKeepAlives:     true,
		},
	}
}

// url returns where a release file is.
func (d downloader) url(base, file string) string {
	if d.mirror != "" {
		base = d.mirror
	}
	return strings.TrimSuffix(base, "/") + "/" + file
}

// download fetches those of programs that have a pinned checksum. What it cannot
// fetch is left for a build: it reports why in one line. A file with another
// checksum is an error, since it is either damaged or not what was reviewed.
func (d downloader) download(ctx context.Context, t tool, version string, programs []Program) error {
	if t.release == nil || d.mirror == "none" || runtime.GOOS != "linux" {
		return nil
	}
	r := t.release()
	pins, err := readPins(filepath.Join(d.root, t.directory, r.pins))
	if err != nil {
		return err
	}
	for _, p := range programs {
		file := r.path(version, runtime.GOARCH, p)
		sum, found := pins[file]
		if !found {
			continue
		}
		begin := time.Now()
		size, err := d.fetch(ctx, d.url(r.base, file), sum, p)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errChecksum):
			return fmt.Errorf("downloading %s: %w; to build it from its Go module instead, set %s=none", p, err, MirrorVariable)
		case err != nil:
			// Building one program builds most of what the others need.
			fmt.Fprintf(d.out, "Cannot download %s %s, building from Go modules instead: %v\n", p, version, err)
			return nil
		}
		fmt.Fprintf(d.out, "Downloaded %s %s: %d MB in %s.\n", p, version, size>>20, time.Since(begin).Round(100*time.Millisecond))
	}
	return nil
}

// fetch puts the program in the file at url into d.dir, if the file has the
// given checksum.
func (d downloader) fetch(ctx context.Context, url, sum string, p Program) (size int64, err error) {
	body, err := d.get(ctx, url)
	if err != nil {
		return 0, err
	}
	defer body.Close()
	temp, err := os.MkdirTemp(d.dir, ".download-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(temp)

	whole := filepath.Join(temp, "file")
	digest := newDigest(sum)
	size, err = writeProgram(whole, io.TeeReader(body, digest), d.limit)
	if err != nil {
		return 0, fmt.Errorf("reading %s: %w", url, err)
	}
	if got := hex.EncodeToString(digest.Sum(nil)); got != sum {
		return 0, fmt.Errorf("%w: %s has the SHA-%d %s, pinned is %s", errChecksum, url, 8*digest.Size(), got, sum)
	}
	program := whole
	if strings.HasSuffix(url, ".tar.gz") {
		program = filepath.Join(temp, "program")
		if err := extract(whole, string(p), program, d.limit); err != nil {
			return 0, fmt.Errorf("unpacking %s: %w", url, err)
		}
	}
	return size, os.Rename(program, filepath.Join(d.dir, string(p)))
}

// newDigest computes what a checksum is: a SHA-512, or else a SHA-256.
func newDigest(sum string) hash.Hash {
	if len(sum) == hex.EncodedLen(sha512.Size) {
		return sha512.New()
	}
	return sha256.New()
}

// get starts to read the file at url.
func (d downloader) get(ctx context.Context, url string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := d.client.Do(request)
	if err != nil {
		return nil, err // names the URL
	}
	if response.StatusCode != http.StatusOK {
		response.Body.Close()
		return nil, fmt.Errorf("%s: %s", url, response.Status)
	}
	return response.Body, nil
}

// writeProgram creates an executable file from what is read, up to limit.
func writeProgram(name string, from io.Reader, limit int64) (int64, error) {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return 0, err
	}
	size, err := io.Copy(file, io.LimitReader(from, limit+1))
	if err := errors.Join(err, file.Close()); err != nil {
		return 0, err
	}
	if size > limit {
		return 0, fmt.Errorf("it is larger than %d bytes", limit)
	}
	return size, nil
}

// extract writes the file called name, in whatever directory of the archive, to target.
func extract(archive, name, target string, limit int64) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		return err
	}
	for entries := tar.NewReader(unzipped); ; {
		entry, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("it holds no %s", name)
		}
		if err != nil {
			return err
		}
		if entry.Typeflag == tar.TypeReg && path.Base(entry.Name) == name {
			_, err := writeProgram(target, entries, limit)
			return err
		}
	}
}

// readPins returns the checksums in a file by path. There need not be a file.
func readPins(name string) (map[string]string, error) {
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the pinned checksums: %w", err)
	}
	pins, err := parseSums(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return pins, nil
}

// parseSums reads the output of sha256sum or sha512sum.
func parseSums(text string) (map[string]string, error) {
	sums := map[string]string{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if len(fields) != 2 || !isSum(fields[0]) {
			return nil, fmt.Errorf("%q is not a line of sha256sum or sha512sum", strings.TrimSpace(line))
		}
		sums[strings.TrimPrefix(fields[1], "*")] = fields[0]
	}
	return sums, nil
}

func isSum(s string) bool {
	raw, err := hex.DecodeString(s)
	return err == nil && hex.EncodeToString(raw) == s && (len(raw) == sha256.Size || len(raw) == sha512.Size)
}
