package dataplane

import "context"

// Spotter detects, besides by their ports, other proxies that serve
// the Services of this node. Its methods may be called from several goroutines.
type Spotter interface {
	// OtherProxy returns what shows that another proxy is active, human-readable;
	// empty: nothing does. It is called before every write, so it costs little.
	// With an error it may return a sign all the same: what it could check.
	OtherProxy(ctx context.Context) (sign string, err error)
	// Begin says that we are about to write. It removes from the kernel what a
	// live proxy would make again, and returns, human-readable, what other proxies
	// have left besides. From now on OtherProxy also returns what appears that
	// only shows a proxy by appearing, until End. After an error it has not
	// begun.
	Begin(ctx context.Context) (leftovers []string, err error)
	// End says that we write no longer.
	End()
}
