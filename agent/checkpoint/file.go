package checkpoint

import (
	"compress/gzip"
	"encoding/json"
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
var ErrNone = errors.New("there is no checkpoint on this node")

// File is the checkpoint of one node on disk.
type File struct {
	node string
	path string
	disk disk
}

// New returns the file of a node in a directory, which need not exist yet. The name must be
// valid for a file.
func New(directory, node string) (*File, error) {
	if node == "" || node != filepath.Base(node) || node == "." || node == ".." {
		return nil, fmt.Errorf("node name %q cannot be part of a file's name", node)
	}
	return &File{node: node, path: filepath.Join(directory, node+".checkpoint"), disk: realDisk{}}, nil
}

// Path is where the file is.
func (f *File) Path() string { return f.path }

// disk is what writing a file takes.
type disk interface {
	// makeDirectory makes a directory and its parents.
	makeDirectory(path string) error
	// create makes a new, empty file, or empties it.
	create(path string) (writable, error)
	rename(from, to string) error
	remove(path string) error
	// syncDirectory brings to disk which files a directory has.
	syncDirectory(path string) error
}

type writable interface {
	io.WriteCloser
	Sync() error
}

// Write replaces the former set completely or not at all, even if the machine stops meanwhile.
// It returns the number of bytes.
func (f *File) Write(s *Set) (int64, error) {
	directory := filepath.Dir(f.path)
	if err := f.disk.makeDirectory(directory); err != nil {
		return 0, fmt.Errorf("creating the directory of the checkpoint: %w", err)
	}
	s.Node = f.node
	temporary := f.path + ".tmp"
	size, err := f.fill(temporary, s)
	if err == nil {
		err = f.disk.rename(temporary, f.path)
	}
	if err != nil {
		_ = f.disk.remove(temporary) // it only takes space; the next Write empties it
		return 0, fmt.Errorf("writing the checkpoint: %w", err)
	}
	if err := f.disk.syncDirectory(directory); err != nil {
		return 0, fmt.Errorf("writing the checkpoint: %w", err)
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
	counted := &limited{to: out, left: maxFile}
	if err := encode(counted, s); err != nil {
		return 0, err
	}
	return maxFile - counted.left, out.Sync()
}

// Remove removes the file, and the remains of a write that was interrupted. That there is
// neither is no error.
func (f *File) Remove() error {
	gone := false
	for _, path := range []string{f.path, f.path + ".tmp"} {
		switch err := f.disk.remove(path); {
		case err == nil:
			gone = true
		case !errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("removing the checkpoint: %w", err)
		}
	}
	if !gone {
		return nil
	}
	if err := f.disk.syncDirectory(filepath.Dir(f.path)); err != nil {
		return fmt.Errorf("removing the checkpoint: %w", err)
	}
	return nil
}

// Peek reads the header of the file. The error is why the file cannot be used; ErrNone: there is
// none. If it is too old, the header comes with the error.
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

// Read reads the file. The error is why it cannot be used; ErrNone: there is none.
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
	in, err := os.OpenFile(f.path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe must not block
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

func decode(f io.ReaderAt, size int64, use func(*decoder) error) error {
	compressed, err := check(f, size)
	if err != nil {
		return err
	}
	zip, err := gzip.NewReader(compressed)
	if err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	return use(&decoder{json.NewDecoder(io.LimitReader(zip, maxPlain))})
}

// header reads the header and checks that it is this node's.
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

func (realDisk) makeDirectory(path string) error { return os.MkdirAll(path, 0o700) }

func (realDisk) create(path string) (writable, error) {
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := out.Chmod(0o600); err != nil { // it may have existed
		return nil, errors.Join(err, out.Close())
	}
	return out, nil
}

func (realDisk) rename(from, to string) error { return os.Rename(from, to) }

func (realDisk) remove(path string) error { return os.Remove(path) }

func (realDisk) syncDirectory(path string) error {
	directory, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}
