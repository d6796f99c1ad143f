package checkpoint

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"
)

func newFile(t testing.TB) *File {
	t.Helper()
	f, err := New(filepath.Join(t.TempDir(), "a", "b"), "node-1")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func mustWrite(t testing.TB, f *File, s *Set) int64 {
	t.Helper()
	size, err := f.Write(s)
	if err != nil {
		t.Fatal(err)
	}
	return size
}

func TestRoundTrip(t *testing.T) {
	for _, services := range []int{0, 1, 300} {
		f := newFile(t)
		if _, err := f.Peek(epoch); !errors.Is(err, ErrNone) {
			t.Errorf("before the first: %v", err)
		}
		want := sample(services, 3)
		size := mustWrite(t, f, want)
		got, err := f.Read(epoch)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%d Services (-want +got):\n%s", services, diff)
		}
		header, err := f.Peek(epoch)
		if diff := cmp.Diff(&want.Header, header); err != nil || diff != "" {
			t.Errorf("header: %v, (-want +got):\n%s", err, diff)
		}
		info, err := os.Stat(f.Path())
		if err != nil || info.Mode() != 0o600 || info.Size() != size {
			t.Errorf("file: %v, %v, want %d bytes", info, err, size)
		}
		if directory, err := os.Stat(filepath.Dir(f.Path())); err != nil || directory.Mode().Perm() != 0o700 {
			t.Errorf("directory: %v, %v", directory, err)
		}
	}
}

func TestWriteReplaces(t *testing.T) {
	f := newFile(t)
	mustWrite(t, f, sample(1, 1))
	// What a killed run left, larger than what comes, and readable by all.
	if err := os.WriteFile(f.Path()+".tmp", bytes.Repeat([]byte("x"), 1<<16), 0o644); err != nil {
		t.Fatal(err)
	}
	second := sample(2, 2)
	mustWrite(t, f, second)
	got, err := f.Read(epoch)
	if diff := cmp.Diff(second, got); err != nil || diff != "" {
		t.Errorf("%v, (-want +got):\n%s", err, diff)
	}
	entries, err := os.ReadDir(filepath.Dir(f.Path()))
	if err != nil || len(entries) != 1 {
		t.Errorf("in the directory: %v, %v", entries, err)
	}
	if info, err := os.Stat(f.Path()); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestNamesOfNodes(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "../b", "/b"} {
		if _, err := New(t.TempDir(), name); err == nil {
			t.Errorf("%q is taken for the name of a Node", name)
		}
	}
}

// wrapped gives bytes the form and the checksum of a file.
func wrapped(plain []byte) []byte {
	var out bytes.Buffer
	out.WriteString(magic)
	zip := gzip.NewWriter(&out)
	_, _ = zip.Write(plain) // into memory
	_ = zip.Close()
	return sealed(out.Bytes())
}

func sealed(body []byte) []byte {
	sum := sha256.Sum256(body)
	return append(bytes.Clone(body), sum[:]...)
}

// plain returns what a file of the set expands to.
func plain(t testing.TB, s *Set) []byte {
	t.Helper()
	var out, expanded bytes.Buffer
	if err := encode(&out, s); err != nil {
		t.Fatal(err)
	}
	zip, err := gzip.NewReader(bytes.NewReader(out.Bytes()[len(magic) : out.Len()-sha256.Size]))
	if err == nil {
		_, err = expanded.ReadFrom(zip)
	}
	if err != nil {
		t.Fatal(err)
	}
	return expanded.Bytes()
}

func TestUselessFiles(t *testing.T) {
	f := newFile(t)
	mustWrite(t, f, sample(5, 2))
	good, err := os.ReadFile(f.Path())
	if err != nil {
		t.Fatal(err)
	}
	values := plain(t, sample(5, 2))
	lines := bytes.SplitAfter(values, []byte("\n"))
	flipped := bytes.Clone(good)
	flipped[len(flipped)/2] ^= 1
	other := sample(1, 1)
	other.Node, other.Rules.Name = "node-2", "node-2"
	stranger := sample(1, 1)
	stranger.Rules.Name = "node-2"
	for name, tt := range map[string]struct {
		content []byte
		after   time.Duration
		want    string
	}{
		"empty":                  {nil, 0, "no checkpoint at all"},
		"cut":                    {good[:len(good)-1], 0, "checksum is wrong"},
		"cut in the middle":      {good[:len(good)/2], 0, "checksum is wrong"},
		"cut in the first line":  {good[:10], 0, "it has 10 bytes only"},
		"cut after the line":     {good[:len(magic)+5], 0, "bytes only"},
		"one bit":                {flipped, 0, "checksum is wrong"},
		"longer":                 {append(bytes.Clone(good), 'x'), 0, "checksum is wrong"},
		"something else":         {[]byte("#!/bin/sh\necho this is no checkpoint, but it is long enough\n"), 0, "no checkpoint at all"},
		"another format":         {sealed([]byte(family + "2\nwhatever")), 0, `its header is "nodeproxy checkpoint, format 2"`},
		"of another node":        {wrapped(plain(t, other)), 0, `the file is of another node, "node-2"; this is "node-1"`},
		"with another's object":  {wrapped(plain(t, stranger)), 0, `it has the NodeProxyRules "node-2"`},
		"too old":                {good, MaxAge + time.Minute, "written at 2026-11-20T08:00:00Z, and only one of the last 24h0m0s is used"},
		"not compressed":         {sealed(append([]byte(magic), values...)), 0, "gzip: invalid header"},
		"no JSON":                {wrapped([]byte("hello")), 0, "reading its header"},
		"only a header":          {wrapped(lines[0]), 0, "reading the NodeProxyRules"},
		"fewer Services":         {wrapped(bytes.Join(lines[:4], nil)), 0, "reading a ServiceProxyRules"},
		"more Services":          {wrapped(append(bytes.Clone(values), lines[2]...)), 0, "continues after the last Service"},
		"other Services":         {wrapped(bytes.ReplaceAll(values, []byte("shop.web-3"), []byte("shop.web-9"))), 0, "not those that its header counts"},
		"values of other types":  {wrapped(bytes.ReplaceAll(values, []byte(`"port":80`), []byte(`"port":"80"`))), 0, "cannot unmarshal"},
		"nothing but null":       {wrapped([]byte("null null null")), 0, `of another node, ""`},
		"expands to more than 0": {wrapped(nil), 0, "reading its header"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(f.Path(), tt.content, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := f.Read(epoch.Add(tt.after))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q in it", err, tt.want)
			}
			if after, err := os.ReadFile(f.Path()); err != nil || !bytes.Equal(after, tt.content) {
				t.Errorf("the file was changed: %v", err)
			}
		})
	}
	if err := os.WriteFile(f.Path(), good, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, after := range []time.Duration{MaxAge, -time.Hour, -10 * MaxAge} {
		if _, err := f.Read(epoch.Add(after)); err != nil {
			t.Errorf("after %s: %v", after, err)
		}
	}
	if header, err := f.Peek(epoch.Add(2 * MaxAge)); err == nil || header == nil || !header.ConflictingProxy {
		t.Errorf("the header of one that is too old: %v, %v", header, err)
	}
}

func TestNoRegularFile(t *testing.T) {
	f := newFile(t)
	if err := os.MkdirAll(f.Path(), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Read(epoch); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("a directory: %v", err)
	}
	if _, err := f.Write(sample(1, 1)); err == nil {
		t.Error("a directory was overwritten")
	}
	pipe := newFile(t)
	if err := os.MkdirAll(filepath.Dir(pipe.Path()), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(pipe.Path(), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := pipe.Read(epoch); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("a pipe: %v", err)
	}
}

// faulty is a disk on which one step fails.
type faulty struct {
	realDisk
	step string
	room int // bytes, with step "write"
}

var errNoSpace = &fs.PathError{Op: "write", Path: "/state/node-1.checkpoint.tmp", Err: unix.ENOSPC}

func (d *faulty) fails(step string) error {
	if d.step == step {
		return errNoSpace
	}
	return nil
}

func (d *faulty) makeDirectory(path string) error {
	return errors.Join(d.fails("makeDirectory"), d.realDisk.makeDirectory(path))
}

func (d *faulty) create(path string) (writable, error) {
	if err := d.fails("create"); err != nil {
		return nil, err
	}
	out, err := d.realDisk.create(path)
	return &faultyFile{out, d}, err
}

func (d *faulty) rename(from, to string) error {
	if err := d.fails("rename"); err != nil {
		return err
	}
	return d.realDisk.rename(from, to)
}

func (d *faulty) syncDirectory(path string) error {
	return errors.Join(d.fails("syncDirectory"), d.realDisk.syncDirectory(path))
}

type faultyFile struct {
	writable
	disk *faulty
}

func (f *faultyFile) Write(p []byte) (int, error) {
	if f.disk.step != "write" || len(p) <= f.disk.room {
		f.disk.room -= len(p)
		return f.writable.Write(p)
	}
	n, _ := f.writable.Write(p[:f.disk.room])
	f.disk.room = 0
	return n, errNoSpace
}

func (f *faultyFile) Sync() error { return errors.Join(f.disk.fails("sync"), f.writable.Sync()) }

func (f *faultyFile) Close() error { return errors.Join(f.disk.fails("close"), f.writable.Close()) }

func TestFailedWriteRetainsTheFormerFile(t *testing.T) {
	former, next := sample(3, 2), sample(400, 10)
	next.Written = epoch.Add(10 * time.Minute)
	for _, step := range []string{"makeDirectory", "create", "write", "sync", "close", "rename"} {
		t.Run(step, func(t *testing.T) {
			f := newFile(t)
			mustWrite(t, f, former)
			f.disk = &faulty{step: step, room: 2000}
			_, err := f.Write(next)
			if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "the checkpoint") {
				t.Errorf("error %v", err)
			}
			got, err := f.Read(epoch)
			if diff := cmp.Diff(former, got); err != nil || diff != "" {
				t.Errorf("the former is not there: %v, (-want +got):\n%s", err, diff)
			}
			if entries, err := os.ReadDir(filepath.Dir(f.Path())); err != nil || len(entries) != 1 {
				t.Errorf("left in the directory: %v, %v", entries, err)
			}
			f.disk = realDisk{}
			mustWrite(t, f, next)
			if got, err := f.Read(epoch); err != nil || len(got.Services) != 400 {
				t.Errorf("once there is room: %v", err)
			}
		})
	}
	f := newFile(t)
	f.disk = &faulty{step: "syncDirectory"}
	if _, err := f.Write(next); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a directory that cannot be synced: %v", err)
	}
}

func TestBounded(t *testing.T) {
	var out bytes.Buffer
	l := &limited{to: &out, left: 3}
	if _, err := l.Write([]byte("abc")); err != nil {
		t.Error(err)
	}
	if _, err := l.Write([]byte("d")); !errors.Is(err, errTooBig) || out.String() != "abc" {
		t.Errorf("%v, %q", err, out.String())
	}
	f := newFile(t)
	if err := os.MkdirAll(filepath.Dir(f.Path()), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.Path(), []byte(magic), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(f.Path(), maxFile+1); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Read(epoch); err == nil || !strings.Contains(err.Error(), "of at most 67108864") {
		t.Errorf("a huge file: %v", err)
	}
}

// FuzzDecode takes bytes for a file, for one with the right checksum, and for
// what it expands to.
func FuzzDecode(f *testing.F) {
	var good bytes.Buffer
	if err := encode(&good, sample(2, 2)); err != nil {
		f.Fatal(err)
	}
	f.Add(good.Bytes())
	f.Add(good.Bytes()[len(magic) : good.Len()-sha256.Size])
	f.Add(plain(f, sample(2, 2)))
	f.Add([]byte(`{"node":"node-1","services":-1}{"name":"node-1","spec":null}`))
	f.Add([]byte(`{"node":"node-1","services":1}{"name":"node-1","spec":{"services":[{}]}}{"name":"x","spec":{"ports":[{"endpoints":[{}]}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, content := range [][]byte{data, sealed(append([]byte(magic), data...)), wrapped(data)} {
			var set *Set
			err := decode(bytes.NewReader(content), int64(len(content)), func(d *decoder) error {
				h, err := (&File{node: "node-1"}).header(d)
				if err != nil {
					return err
				}
				set, err = d.rest(h)
				return err
			})
			if (err == nil) != (set != nil) {
				t.Fatalf("error %v, set %v", err, set)
			}
			if set != nil {
				if diff := cmp.Diff(set, sameAgain(t, set), cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("(-read +written and read):\n%s", diff)
				}
				sameAgain(t, set.WithoutLocalEndpoints())
			}
		}
	})
}

// sameAgain writes a set and returns what is read of that. Written once more it must
// be the same bytes: nothing is lost on the way.
func sameAgain(t *testing.T, set *Set) *Set {
	t.Helper()
	var first, second bytes.Buffer
	if err := encode(&first, set); err != nil {
		t.Fatalf("a set that was read cannot be written: %v", err)
	}
	var again *Set
	if err := decode(bytes.NewReader(first.Bytes()), int64(first.Len()), func(d *decoder) error {
		h, err := d.header()
		if err != nil {
			return err
		}
		again, err = d.rest(h)
		return err
	}); err != nil {
		t.Fatalf("a set that was written cannot be read: %v", err)
	}
	if err := encode(&second, again); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Errorf("written twice, a set differs: %q, %q", first.Bytes(), second.Bytes())
	}
	return again
}

// BenchmarkFile prints what a set costs: bytes on disk, and the memory that
// writing allocates at once and in all.
func BenchmarkFile(b *testing.B) {
	for _, size := range []struct {
		name                string
		services, endpoints int
	}{{"1000x10", 1000, 10}, {"5000x10", 5000, 10}} {
		set := sample(size.services, size.endpoints)
		f := newFile(b)
		b.Run("write/"+size.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				b.ReportMetric(float64(mustWrite(b, f, set)), "bytes")
			}
		})
		b.Run("read/"+size.name, func(b *testing.B) {
			b.ReportAllocs()
			var last *Set
			before := heap()
			for b.Loop() {
				var err error
				if last, err = f.Read(epoch); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(heap()-before), "heap-bytes")
			runtime.KeepAlive(last)
		})
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestRemove(t *testing.T) {
	f, err := New(filepath.Join(t.TempDir(), "state"), "node-1")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Remove(); err != nil {
		t.Errorf("nothing to remove: %v", err)
	}
	if err := os.MkdirAll(filepath.Dir(f.Path()), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{f.Path(), f.Path() + ".tmp"} {
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Remove(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Dir(f.Path())); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
