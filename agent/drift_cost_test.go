package agent

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestTimeOfWatching measures what the watch costs while another program
// writes rules that are not ours all the time, as some CNI plugins do.
func TestTimeOfWatching(t *testing.T) {
	if !inOwnNamespace(t) {
		return
	}
	const (
		services  = 1000
		perSecond = 50
		lasts     = 5 * time.Second
	)
	n := newLiveNode(t, "xtables-nft-multi", services)
	n.loopRests()
	pass(2 * time.Second) // what follows the first set is over
	n.loopRests()
	idle := n.cpuDuring(lasts, func() {})
	reads := n.reads()
	writer := n.writer()
	busy := n.cpuDuring(lasts, func() {
		for range int(lasts.Seconds()) * perSecond / 2 {
			// A rule of a plugin beside ours, and one in a table of its own.
			writer("add rule ip nat CNI-X counter")
			pass(time.Second / perSecond)
			writer("flush chain ip cni X")
			pass(time.Second / perSecond)
		}
	})
	n.Logf("%d Services x 10; CPU of the agent and its programs: %.2f%% of a core when nothing happens, %.2f%% while another program writes %d transactions a second that are not ours; %d looks at the rules",
		services, 100*idle, 100*busy, perSecond, n.reads()-reads)
	if n.reads() != reads {
		t.Errorf("%d checks of changes that are not ours", n.reads()-reads)
	}
	if busy > 0.05 {
		t.Errorf("the watch takes %.1f%% of a core", 100*busy)
	}
	command(t, filepath.Join(n.directory, "iptables"), "-t", "nat", "-F", "KUBE-MARK-MASQ")
	n.until("a repair beside all that", func() bool { return repairs(n.Agent) == 1 })
	n.intact()
}

// reads counts the comparisons of the kernel to the desired state.
func (n *liveNode) reads() int {
	sum := 0.0
	for _, v := range counted(n.T, n.Agent, "verifications_total", "result") {
		sum += v
	}
	return int(sum)
}

// writer starts a program that writes a transaction for each line.
func (n *liveNode) writer() func(line string) {
	n.Helper()
	command(n.T, "nft", "add table ip cni; add chain ip cni X; add chain ip nat CNI-X")
	cmd := exec.Command("nft", "-i")
	in, err := cmd.StdinPipe()
	if err != nil {
		n.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	return func(line string) {
		if _, err := fmt.Fprintln(in, line); err != nil {
			n.Fatal(err)
		}
	}
}

// cpuDuring runs do, and returns the share of a core that this process and the
// children that it has waited for took until at least d had passed.
func (n *liveNode) cpuDuring(d time.Duration, do func()) float64 {
	n.Helper()
	start, before := time.Now(), cpuTime(n.T)
	do()
	pass(time.Until(start.Add(d)))
	return (cpuTime(n.T) - before).Seconds() / time.Since(start).Seconds()
}

func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var sum int64
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var usage syscall.Rusage
		if err := syscall.Getrusage(who, &usage); err != nil {
			t.Fatal(err)
		}
		sum += usage.Utime.Nano() + usage.Stime.Nano()
	}
	return time.Duration(sum)
}
