package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNone means that there is no file: nothing was ever written.
var ErrNone = errors.New("there is no last good set on this node")

// File is the last good set of one node on disk.
type File struct {
	node string
	path string
	disk disk
}

// New returns the file of a node in a folder, which need not exist yet. The
// name must be that of a Node, so that it can be one of a file.
func New(folder, node string) (*File, error) {
	if node == "" || node != filepath.Base(node) || node == "." || node == ".." {
		return nil, fmt.Errorf("node name %q cannot be part of a file's name", node)
	}
	return &File{node: node, path: filepath.Join(folder, node+".checkpoint"), disk: realDisk{}}, nil
}

// Path is where the file is.
func (f *File) Path() string { return f.path }

// disk is what writing a file takes.
type disk interface {
	// makeFolder makes a folder and those above it.
	makeFolder(path string) error
	// create makes a new, empty file, or empties it.
	create(path string) (writable, error)
	rename(from, to string) error
	remove(path string) error
	// syncFolder brings to disk what files a folder has.
	syncFolder(path string) error
}

type writable interface {
	io.WriteCloser
	Sync() error
}

// Write puts the set in the place of the former one, all of it or nothing: also
// when the machine stops in between, one of the two is there. It returns the
// number of bytes.
func (f *File) Write(s *Set) (int64, error) {
	folder := filepath.Dir(f.path)
	if err := f.disk.makeFolder(folder); err != nil {
		return 0, fmt.Errorf("making the folder of the last good set: %w", err)
	}
	s.Node = f.node
	temporary := f.path + ".tmp"
	size, err := f.fill(temporary, s)
	if err == nil {
		err = f.disk.rename(temporary, f.path)
	}
	if err != nil {
		_ = f.disk.remove(temporary) // it takes room, no more; the next Write empties it
		return 0, fmt.Errorf("writing the last good set: %w", err)
	}
	if err := f.disk.syncFolder(folder); err != nil {
		return 0, fmt.Errorf("writing the last good set: %w", err)
	}
	return size, nil
}

// fill writes the set into a new file and brings it to disk.
func (f *File) fill(path string, s *Set) (size int64, err error) {
	out, err := f.disk.create(path)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	counted := &counter{to: out}
	if err := encode(counted, s); err != nil {
		return 0, err
	}
	return counted.n, out.Sync()
}

type counter struct {
	to io.Writer
	n  int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.n += int64(n)
	return n, err
}

// Remove removes the file, and what a write that was cut off has left. That there
// is neither is no error.
func (f *File) Remove() error {
	gone := false
	for _, path := range []string{f.path, f.path + ".tmp"} {
		switch err := f.disk.remove(path); {
		case err == nil:
			gone = true
		case !errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("removing the last good set: %w", err)
		}
	}
	if !gone {
		return nil
	}
	if err := f.disk.syncFolder(filepath.Dir(f.path)); err != nil {
		return fmt.Errorf("removing the last good set: %w", err)
	}
	return nil
}

// Peek reads the header of the file. The error says for people why the file is
// of no use; ErrNone: there is none. Now is the time by which it may be too old:
// then the header comes with the error.
func (f *File) Peek(now time.Time) (*Header, error) {
	var header *Header
	err := f.read(func(d *decoder) (err error) {
		header, err = f.header(d)
		return err
	})
	if err != nil {
		return nil, err
	}
	return header, fresh(header, now)
}

// Read reads the file. The error says for people why it is of no use; ErrNone:
// there is none.
func (f *File) Read(now time.Time) (*Set, error) {
	var set *Set
	err := f.read(func(d *decoder) error {
		header, err := f.header(d)
		if err != nil {
			return err
		}
		if err := fresh(header, now); err != nil {
			return err
		}
		set, err = d.rest(header)
		return err
	})
	return set, err
}

func (f *File) read(use func(*decoder) error) error {
	in, err := os.OpenFile(f.path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe must not make us wait
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNone
	}
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // only read from
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%w: it is no regular file", errFormat)
	}
	return decode(in, info.Size(), use)
}

func decode(f file, size int64, use func(*decoder) error) error {
	compressed, err := check(f, size)
	if err != nil {
		return err
	}
	d, err := newDecoder(compressed)
	if err != nil {
		return err
	}
	return use(d)
}

// header reads the header and looks whether it is this node's.
func (f *File) header(d *decoder) (*Header, error) {
	h, err := d.header()
	if err != nil {
		return nil, err
	}
	if h.Node != f.node {
		return nil, fmt.Errorf("the file is of another node, %q; this is %q", h.Node, f.node)
	}
	return h, nil
}

func fresh(h *Header, now time.Time) error {
	if h.Age(now) > MaxAge {
		return fmt.Errorf("the file is too old: it was written at %s, and only one of the last %s is used",
			h.Written.UTC().Format(time.RFC3339), MaxAge)
	}
	return nil
}

// realDisk is the node's.
type realDisk struct{}

func (realDisk) makeFolder(path string) error { return os.MkdirAll(path, 0o700) }

func (realDisk) create(path string) (writable, error) {
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := out.Chmod(0o600); err != nil { // it may have been there
		return nil, errors.Join(err, out.Close())
	}
	return out, nil
}

func (realDisk) rename(from, to string) error { return os.Rename(from, to) }

func (realDisk) remove(path string) error { return os.Remove(path) }

func (realDisk) syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
