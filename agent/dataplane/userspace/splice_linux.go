package userspace

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// pipeSize is how much is moved at a time at most: what a large pipe has room for. In pipes of 64 KiB, the
	// kernel's default, a byte takes more than twice the processor time.
	pipeSize = 1 << 20
	// maxLargePipes are those of a worker. Clients that do not read would fill any number of them; other
	// connections get pipes of the kernel's default.
	maxLargePipes = 64
	// maxIdlePipes are kept for the next transfer. A connection has pipes only while something is in
	// transit.
	maxIdlePipes = 16
	// share is how much a direction may transfer before it is the turn of other connections.
	share = pipeSize
)

// pipe is where bytes are on their way between two sockets, which never reach the process's memory.
type pipe struct {
	read, write int
	has         int // bytes
	large       bool
}

// pipe returns an empty pipe.
func (w *worker) pipe() (*pipe, error) {
	if n := len(w.pipes); n > 0 {
		p := w.pipes[n-1]
		w.pipes = w.pipes[:n-1]
		return p, nil
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	p := &pipe{read: fds[0], write: fds[1]}
	if w.largePipes < maxLargePipes {
		if _, err := unix.FcntlInt(uintptr(p.write), unix.F_SETPIPE_SZ, pipeSize); err == nil {
			p.large = true
			w.largePipes++
		}
	}
	return p, nil
}

// giveBack takes a pipe that is no longer needed.
func (w *worker) giveBack(p *pipe) {
	if p.has > 0 || len(w.pipes) >= maxIdlePipes {
		if p.large {
			w.largePipes--
		}
		p.close()
		return
	}
	w.pipes = append(w.pipes, p)
}

func (p *pipe) close() {
	_ = unix.Close(p.read)
	_ = unix.Close(p.write)
}

// flow is one direction of a connection.
type flow struct {
	pipe  *pipe // nil: nothing is in transit
	moved int64 // bytes that the receiver's socket has taken
	ended bool  // the sender has sent everything
	done  bool  // and the receiver knows
}

// brokenError is why a direction cannot go on.
type brokenError struct {
	error
	sender bool // the sender's socket has failed, otherwise the receiver's
}

// transfer moves what it can from one socket to another. It returns how many bytes the receiver took,
// and more if it stopped only because others have to get their turn.
func (f *flow) transfer(w *worker, from, to int) (moved int64, more bool, broken *brokenError) {
	for !f.done {
		read, err := f.fill(w, from)
		if err != nil {
			return moved, false, &brokenError{err, true}
		}
		wrote, err := f.drain(to)
		moved += wrote
		f.moved += wrote
		if err != nil {
			return moved, false, &brokenError{err, false}
		}
		if f.pipe != nil && f.pipe.has == 0 {
			w.giveBack(f.pipe)
			f.pipe = nil
		}
		if f.ended && f.pipe == nil {
			f.done = true
			if err := unix.Shutdown(to, unix.SHUT_WR); err != nil && !errors.Is(err, unix.ENOTCONN) {
				return moved, false, &brokenError{os.NewSyscallError("shutdown", err), false}
			}
		}
		switch {
		case read == 0 && wrote == 0:
			return moved, false, nil
		case moved >= share:
			return moved, !f.done, nil
		}
	}
	return moved, false, nil
}

// fill moves bytes from the sender into the pipe, if there is room.
func (f *flow) fill(w *worker, from int) (read int, err error) {
	if f.ended {
		return 0, nil
	}
	if f.pipe == nil {
		if f.pipe, err = w.pipe(); err != nil {
			return 0, err
		}
	}
	for {
		n, err := unix.Splice(from, nil, f.pipe.write, nil, pipeSize, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN): // nothing has come, or the pipe is full
			return 0, nil
		case err != nil:
			return 0, os.NewSyscallError("splice", err)
		case n == 0:
			f.ended = true
		}
		f.pipe.has += int(n)
		return int(n), nil
	}
}

// drain moves bytes from the pipe to the receiver, as many as it takes.
func (f *flow) drain(to int) (wrote int64, err error) {
	for f.pipe != nil && f.pipe.has > 0 {
		n, err := unix.Splice(f.pipe.read, nil, to, nil, f.pipe.has, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return wrote, nil
		case err != nil:
			return wrote, os.NewSyscallError("splice", err)
		}
		f.pipe.has -= int(n)
		wrote += n
	}
	return wrote, nil
}

// has reports whether bytes are in transit.
func (f *flow) has() bool { return f.pipe != nil && f.pipe.has > 0 }

// end gives back what the direction has.
func (f *flow) end(w *worker) {
	if f.pipe != nil {
		w.giveBack(f.pipe)
		f.pipe = nil
	}
}
