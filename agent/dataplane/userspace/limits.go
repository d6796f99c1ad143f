package userspace

import "sync/atomic"

// Limits bound what clients can make the proxy hold.
type Limits struct {
	// Connections is how many connections and UDP clients the node's Services may have at a time.
	Connections int64
	// PerPort is the same for one port of a Service.
	PerPort int64
}

// A UDP client takes a port of the node, as processes on it do: the kernel has some 28,000 for UDP.
const maxUDP, maxUDPPerPort = 7_000, 3_500

// maxListeners bounds the ports of the node where it listens for TCP, which no other program can use: the node
// has some 28,000 of its own choice.
const maxListeners = 8192

// maxRetained bounds the first datagrams, in bytes, that the proxy retains to send them again.
const maxRetained = 4 << 20

// limited counts what has a limit.
type limited struct{ n atomic.Int64 }

// take adds n unless that exceeds the limit.
func (l *limited) take(n, limit int64) bool {
	if l.n.Add(n) <= limit {
		return true
	}
	l.n.Add(-n)
	return false
}

func (l *limited) give(n int64) { l.n.Add(-n) }
