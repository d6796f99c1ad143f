package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

func agentFaults() []fault {
	return []fault{
		{name: "agent-killed", title: "agents killed (-9) 30 times, during syncs", repair: 30 * time.Second, inject: agentKilled},
		{name: "state-directory-full", title: "state directory full", repair: 20 * time.Second, inject: stateDirectoryFull},
		{name: "lock-held", title: "lock of iptables held 10 s", repair: 30 * time.Second, inject: lockHeld},
	}
}

var failedWrite = regexp.MustCompile(`nodeproxy_agent_checkpoint_failures_total\{operation="write"\} [1-9]`)

const (
	// kills is how often agentKilled kills an agent, and leastWriting how many of these
	// must hit a write. Between two of them there are changes.
	kills        = 30
	leastWriting = 10
	leastBetween = 3
)

// agentKilled kills the agents of all nodes in turn, some time after they started, and if
// possible at a random moment of a write: a program that writes rules ran just before, or in
// mode NFTables, where a write takes less than a millisecond, its batch was just committed.
func agentKilled(r *run) {
	stop := r.changeAtLeast(40*time.Millisecond, func(time.Duration) int64 { return kills * leastBetween })
	writing, nodes := 0, r.cluster.Nodes()
	watch := func(_ *cluster.Node, agent *cluster.Process) func() bool {
		return func() bool { return writes(agent.PID()) }
	}
	if r.mode == v1alpha1.ModeNFTables {
		watch = r.batches()
	}
	for i := range kills {
		node := nodes[i%len(nodes)]
		agent := r.agents[node.Name()]
		isWriting := watch(node, agent)
		r.until(time.Minute, func(context.Context) error {
			if n, least := r.changes.Load(), int64((i+1)*leastBetween); n < least {
				return fmt.Errorf("only %d changes of endpoints, want %d before kill %d", n, least, i+1)
			}
			return nil
		})
		r.pass(time.Duration(r.random.IntN(1000)) * time.Millisecond)
		if r.catch(isWriting) {
			r.pass(time.Duration(r.random.IntN(5000)) * time.Microsecond)
		}
		if isWriting() {
			writing++
		}
		r.must(agent.Kill())
		r.must(r.startAgent(node))
	}
	stop()
	when := "during a write"
	if r.mode == v1alpha1.ModeNFTables {
		when = fmt.Sprintf("within %s of a commit", justNow)
	}
	r.remark("%d %s", writing, when)
	if writing < leastWriting {
		r.Errorf("only %d of %d kills came %s, want at least %d: this proves too little", writing, kills, when, leastWriting)
	}
}

// catch waits until an agent writes, for a second at most.
func (r *run) catch(isWriting func() bool) bool {
	deadline := time.Now().Add(time.Second)
	for time.Now().Before(deadline) {
		if isWriting() {
			return true
		}
		r.pass(200 * time.Microsecond)
	}
	return false
}

// writes reports whether a process has a child that writes rules.
func writes(pid int) bool {
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return false
	}
	for _, list := range lists {
		children, _ := os.ReadFile(list) // a thread may end
		for child := range strings.FieldsSeq(string(children)) {
			command, _ := os.ReadFile(filepath.Join("/proc", child, "cmdline"))
			if strings.Contains(string(command), "-restore\x00") {
				return true
			}
		}
	}
	return false
}

// stateDirectoryFull starts the first node's agent with a full state directory, and
// makes room again while it runs.
func stateDirectoryFull(r *run) {
	node := r.cluster.Node(0)
	state := r.stateDirectory(node)
	r.must(r.agents[node.Name()].Stop())
	// A mount of its own goes with the agent.
	const script = `mount -t tmpfs -o size=16k tmpfs "$0" && { head -c 1000000 </dev/zero >"$0/full" 2>/dev/null; exec "$@"; }`
	r.must(r.startAgent(node, "unshare", "--mount", "sh", "-c", script, state))
	agent := r.agents[node.Name()]
	seen := filepath.Join("/proc", fmt.Sprint(agent.PID()), "root", state)
	stop := r.change(200 * time.Millisecond)
	r.until(20*time.Second, r.reported)
	r.must(r.isFull(seen))
	r.pass(10 * time.Second)
	r.until(30*time.Second, func(ctx context.Context) error {
		text, err := node.Get(ctx, "http://127.0.0.1:19256/metrics")
		if err == nil && !failedWrite.MatchString(text) {
			err = errors.New("the agent has not tried to write a checkpoint")
		}
		return err
	})
	r.must(r.isFull(seen))
	stop()
	r.must(os.Remove(filepath.Join(seen, "full")))
}

// isFull returns an error if anything can be written to a directory.
func (*run) isFull(directory string) error {
	path := filepath.Join(directory, "more")
	err := os.WriteFile(path, make([]byte, 4096), 0o600)
	_ = os.Remove(path)
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return nil
	case err == nil:
		return errors.New("the state directory is not full")
	default:
		return fmt.Errorf("writing to a state directory that should be full: %w", err)
	}
}

// lockHeld holds the lock that programs of the legacy variant take, while there
// are changes.
func lockHeld(r *run) {
	node := r.cluster.Node(1)
	lock, err := os.OpenFile(r.lockPath(node), os.O_CREATE|os.O_RDWR, 0o600)
	r.must(err)
	defer lock.Close()
	r.must(syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
	begun := time.Now()
	service, err := r.makeService("locked", map[string]string{appLabel: "web"}, nil)
	r.must(err)
	stop := r.change(200 * time.Millisecond)
	other := r.cluster.Node(0)
	r.until(10*time.Second, func(ctx context.Context) error {
		if ok, err := r.serves(ctx, other, service); !ok {
			return errors.Join(err, fmt.Errorf("%s, whose lock is free, does not serve a new Service", other.Name()))
		}
		return nil
	})
	r.until(10*time.Second, func(context.Context) error {
		if !writes(r.agents[node.Name()].PID()) {
			return fmt.Errorf("the agent of %s does not wait for the lock", node.Name())
		}
		return nil
	})
	r.pass(time.Until(begun.Add(10 * time.Second)))
	served, err := r.serves(r.ctx, node, service)
	r.must(err)
	if served {
		r.Errorf("%s serves a Service that was made while the lock was held: it was not held", node.Name())
	}
	r.must(syscall.Flock(int(lock.Fd()), syscall.LOCK_UN))
	r.ended = time.Now()
	stop()
	r.deleteService(service.Name)
}
