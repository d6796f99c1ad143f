package checkpoint

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// A file is the line magic, a gzip stream of JSON values (the header, the own object, one for
// each Service) and the SHA-256 of all that, in 32 bytes. It is written and read as a stream: a
// set is large.

// family is how every format begins, magic the one that is written.
const (
	family = "nodeproxy checkpoint, format "
	magic  = family + "1\n"
)

const (
	// maxFile and maxPlain limit a file and what it expands to, in bytes. Ten thousand Services
	// of a hundred endpoints need far less.
	maxFile  = 64 << 20
	maxPlain = 512 << 20
)

// Reasons why a file is not used.
var (
	errDamaged = errors.New("the file is damaged")
	errFormat  = errors.New("the file is in a format that this version does not know, or no checkpoint at all")
	errTooBig  = fmt.Errorf("the checkpoint takes more than %d MiB compressed or %d MiB in full", maxFile>>20, maxPlain>>20)
)

// stored is what a file has of one object.
type stored[Spec any] struct {
	Name            string    `json:"name"`
	UID             types.UID `json:"uid"`
	ResourceVersion string    `json:"resourceVersion"`
	Generation      int64     `json:"generation,omitempty"`
	Spec            Spec      `json:"spec"`
}

func (s *stored[Spec]) meta() metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion, Generation: s.Generation}
}

// encode writes a set.
func encode(out io.Writer, s *Set) error {
	sum := sha256.New()
	file := &limited{to: io.MultiWriter(out, sum), left: maxFile - sha256.Size}
	if _, err := io.WriteString(file, magic); err != nil {
		return err
	}
	zip, err := gzip.NewWriterLevel(file, gzip.BestSpeed)
	if err != nil {
		return fmt.Errorf("compressing: %w", err)
	}
	plain := bufio.NewWriterSize(&limited{to: zip, left: maxPlain}, 64<<10)
	if err := encodeValues(json.NewEncoder(plain), s); err != nil {
		return err
	}
	if err := errors.Join(plain.Flush(), zip.Close()); err != nil {
		return err
	}
	_, err = out.Write(sum.Sum(nil))
	return err
}

func encodeValues(values *json.Encoder, s *Set) error {
	s.name()
	if err := values.Encode(&s.Header); err != nil {
		return err
	}
	err := values.Encode(&stored[*v1alpha1.NodeProxyRulesSpec]{
		Name: s.Rules.Name, UID: s.Rules.UID, ResourceVersion: s.Rules.ResourceVersion, Generation: s.Rules.Generation, Spec: &s.Rules.Spec,
	})
	for _, o := range s.Services {
		if err != nil {
			return err
		}
		err = values.Encode(&stored[*v1alpha1.ServiceProxyRulesSpec]{Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion, Spec: &o.Spec})
	}
	return err
}

// limited writes a number of bytes and fails with errTooBig above that.
type limited struct {
	to   io.Writer
	left int64
}

func (l *limited) Write(p []byte) (int, error) {
	if l.left -= int64(len(p)); l.left < 0 {
		return 0, errTooBig
	}
	return l.to.Write(p)
}

// check returns the compressed part of a file of the given size if its format and checksum are
// right: all of it is checked before any of it is used.
func check(f io.ReaderAt, size int64) (io.Reader, error) {
	if size > maxFile {
		return nil, fmt.Errorf("%w: it has %d bytes, of at most %d", errFormat, size, maxFile)
	}
	body := size - sha256.Size
	begin := make([]byte, min(int64(len(magic)), size))
	if _, err := f.ReadAt(begin, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if common := min(len(begin), len(family)); string(begin[:common]) != family[:common] || size == 0 {
		return nil, errFormat
	}
	if body < int64(len(magic)) {
		return nil, fmt.Errorf("%w: it has %d bytes only", errDamaged, size)
	}
	if string(begin) != magic {
		return nil, fmt.Errorf("%w: its header is %q", errFormat, bytes.TrimSpace(begin))
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, body)); err != nil {
		return nil, err
	}
	expected := make([]byte, sha256.Size)
	if _, err := f.ReadAt(expected, body); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if !bytes.Equal(sum.Sum(nil), expected) {
		return nil, fmt.Errorf("%w: its checksum is wrong", errDamaged)
	}
	return bufio.NewReaderSize(io.NewSectionReader(f, int64(len(magic)), body-int64(len(magic))), 64<<10), nil
}

// decoder reads the values of a file, in order.
type decoder struct{ values *json.Decoder }

func (d *decoder) header() (*Header, error) {
	h := &Header{}
	return h, d.next("its header", h)
}

// rest reads what follows the header.
func (d *decoder) rest(h *Header) (*Set, error) {
	s := &Set{Header: *h}
	own := stored[v1alpha1.NodeProxyRulesSpec]{}
	if err := d.next("the NodeProxyRules", &own); err != nil {
		return nil, err
	}
	if own.Name != h.Node {
		return nil, fmt.Errorf("%w: it has the NodeProxyRules %q", errDamaged, own.Name)
	}
	s.Rules = &v1alpha1.NodeProxyRules{ObjectMeta: own.meta(), Spec: own.Spec}
	for range h.Services {
		one := stored[v1alpha1.ServiceProxyRulesSpec]{}
		if err := d.next("a ServiceProxyRules", &one); err != nil {
			return nil, err
		}
		s.Services = append(s.Services, &v1alpha1.ServiceProxyRules{ObjectMeta: one.meta(), Spec: one.Spec})
	}
	if _, err := d.values.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: it continues after the last Service", errDamaged)
	}
	s.name()
	if s.Header.Services != h.Services || s.NamesHash != h.NamesHash {
		return nil, fmt.Errorf("%w: its Services are not those that its header counts", errDamaged)
	}
	return s, nil
}

func (d *decoder) next(what string, value any) error {
	if err := d.values.Decode(value); err != nil {
		return fmt.Errorf("%w: reading %s: %w", errDamaged, what, err)
	}
	return nil
}
