package iptables

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	goiptables "github.com/coreos/go-iptables/iptables"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// lockWaitSeconds is how long a tool waits for the lock that programs of the
// legacy variant share.
const lockWaitSeconds = 5

// tools runs the iptables programs of one IP family.
type tools struct {
	family   dataplane.Family
	owner    owner // whose chains are watched
	programs *Programs
	// The following are set once the programs have been found.
	command string // such as iptables
	restore string
	save    string
	commits *Commits

	// ipt edits jumps from built-in chains and knows the version. Nil until the
	// programs have been found.
	ipt     *goiptables.IPTables
	version string

	pace pace
}

// pace is how long iptables-restore may take, and how often it counts as progress meanwhile.
type pace struct {
	// least is for a call that carries nothing, perLine what each line adds.
	least, perLine time.Duration
	beat           time.Duration
}

// restorePace: 2 minutes, of which 5 s are for the lock, and 20 ms a line, which is many
// times what slow machines take. A call of batchRules lines has 3 minutes. One that takes longer
// is stuck: it is ended, nothing of the section that it was in is written, and Apply fails. One
// that cannot be ended counts as progress no longer, so that the kubelet restarts the agent.
func restorePace() pace {
	return pace{least: 2 * time.Minute, perLine: 20 * time.Millisecond, beat: 20 * time.Second}
}

// limit is how long a call with a number of lines may take.
func (p pace) limit(lines int) time.Duration { return p.least + time.Duration(lines)*p.perLine }

// during runs do, which counts as progress of ctx until the time for a number of lines is
// over, when the context that do gets ends.
func (p pace) during(ctx context.Context, lines int, do func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, p.limit(lines))
	defer cancel()
	var beats sync.WaitGroup
	done := make(chan struct{})
	beats.Go(func() {
		ticker := time.NewTicker(p.beat)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				dataplane.Progress(ctx)
			case <-done:
				return
			case <-limited.Done():
				return
			}
		}
	})
	err := do(limited)
	close(done)
	beats.Wait()
	dataplane.Progress(ctx)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("it did not end within %s for %d lines and was stopped: %w", p.limit(lines), lines, err)
	}
	return err
}

// progressReader counts what is read as progress.
type progressReader struct {
	io.Reader
	ctx context.Context
}

func (r progressReader) Read(p []byte) (int, error) {
	dataplane.Progress(r.ctx)
	return r.Reader.Read(p)
}

func newTools(family dataplane.Family, programs *Programs, commits *Commits) *tools {
	return &tools{family: family, programs: programs, commits: commits, pace: restorePace()}
}

// nodeKernel is the node's kernel for one of the modes.
func nodeKernel(family dataplane.Family, mode owner, o *Options) kernel {
	t := newTools(family, o.Programs, o.Commits)
	t.owner = mode
	return t
}

// find looks for the programs, once they have been found never again.
func (t *tools) find(ctx context.Context) error {
	if t.ipt != nil {
		return nil
	}
	found, err := t.programs.find(ctx, t.family)
	if err != nil {
		return err
	}
	t.command, t.restore, t.save = found.command, found.restore(), found.save()
	protocol := goiptables.ProtocolIPv4
	if t.family == dataplane.IPv6 {
		protocol = goiptables.ProtocolIPv6
	}
	ipt, err := goiptables.New(goiptables.IPFamily(protocol), goiptables.Timeout(lockWaitSeconds), goiptables.Path(t.command))
	if err != nil { // it asks for the version again
		return notRunning(newToolError(t.command, err, ""))
	}
	major, minor, patch := ipt.GetIptablesVersion()
	// Since 1.6.2 iptables-restore waits for the lock with -w.
	if major < 1 || major == 1 && (minor < 6 || minor == 6 && patch < 2) {
		return fmt.Errorf("%w: %s is version %d.%d.%d, too old: 1.6.2 or newer is needed",
			dataplane.ErrUnsupported, t.command, major, minor, patch)
	}
	t.ipt = ipt
	t.version = found.version
	return nil
}

func (t *tools) warnings(ctx context.Context) []string { return t.programs.warnings(ctx, t.family) }

func (t *tools) all(ctx context.Context) ([]kernel, error) {
	programs, err := t.programs.all(ctx, t.family)
	if err != nil {
		return nil, err
	}
	var out []kernel
	for _, p := range programs {
		one := newTools(t.family, p, t.commits)
		one.owner = t.owner
		out = append(out, one)
	}
	return out, nil
}

func (t *tools) randomFully() bool { return t.ipt.HasRandomFully() }

func (t *tools) probe() error {
	if _, err := t.ipt.List("nat", "POSTROUTING"); err != nil {
		return probeError(t.command, newToolError(t.command, err, ""))
	}
	return nil
}

// What the programs print of a match that they know and the kernel does not, and of
// one that they do not know. They load the kernel's module for it where there is one.
const (
	saysUnknown    = "missing kernel module"
	saysNotPresent = "Couldn't load match"
)

func (t *tools) lacks(ctx context.Context, matches []string) ([]string, error) {
	var out []string
	for _, m := range matches {
		cmd := exec.CommandContext(ctx, t.command, "-m", m, "--help")
		cmd.Env = environment()
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		err := cmd.Run()
		text := stderr.String()
		if err == nil {
			if strings.Contains(text, saysUnknown) {
				out = append(out, m)
			}
			continue
		}
		failure := newToolError(t.command, err, text)
		if failure.passes() || !strings.Contains(text, saysUnknown) && !strings.Contains(text, saysNotPresent) {
			return nil, fmt.Errorf("looking for the match %s: %w", m, failure)
		}
		out = append(out, m)
	}
	return out, nil
}

func (t *tools) insert(h hook) error {
	var args []string
	words := tokens{rest: h.spec}
	for word, ok := words.next(); ok; word, ok = words.next() {
		args = append(args, word)
	}
	err := t.commits.write(1, func() error { return t.ipt.Insert(h.in.table.String(), h.in.name, 1, args...) })
	if err != nil {
		return newToolError(t.command, err, "")
	}
	return nil
}

func (t *tools) legacy() bool { return variantOf(t.version) == Legacy }

func (t *tools) others() (uint32, bool) {
	if t.legacy() {
		return 0, false
	}
	return t.commits.others()
}

// read reads the tables nat and filter, in one run: the nf_tables variant gets
// the rules of all tables from the kernel whichever it is asked for.
func (t *tools) read(ctx context.Context) (*kernelState, error) {
	defer dataplane.Progress(ctx)
	cmd := exec.CommandContext(ctx, t.save)
	cmd.Env = environment()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", t.save, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("run %s: %w", t.save, err)
	}
	state := newKernelState()
	readErr := state.read(progressReader{out, ctx}) // while it prints, it is not stuck
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("read the rules: %w", newToolError(t.save, err, stderr.String()))
	}
	return state, readErr
}

// list implements kernel.
func (t *tools) list(ctx context.Context, in chainID) ([]kernelRule, error) {
	defer dataplane.Progress(ctx)
	cmd := exec.CommandContext(ctx, t.command, "-w", strconv.Itoa(lockWaitSeconds), "-t", in.table.String(), "-S", in.name)
	cmd.Env = environment()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("list the rules of chain %s: %w", in.name, newToolError(t.command, err, stderr.String()))
	}
	state := newKernelState()
	head := "*" + in.table.String() + "\n:" + in.name + " -\n"
	if err := state.read(io.MultiReader(strings.NewReader(head), &stdout)); err != nil {
		return nil, err
	}
	return state.rulesIn(in)
}

// apply runs iptables-restore. Each section of input is applied as a whole or
// not at all.
func (t *tools) apply(ctx context.Context, input string) error {
	if input == "" {
		return nil
	}
	return t.pace.during(ctx, t.weight(input), func(ctx context.Context) error { return t.run(ctx, input) })
}

// weight is how many lines a call handles: in the legacy variant all of the tables, which it
// rewrites, besides those of its input.
func (t *tools) weight(input string) int {
	lines := strings.Count(input, "\n")
	if held, known := t.entries(); known {
		lines += held
	}
	return lines
}

// run runs iptables-restore.
func (t *tools) run(ctx context.Context, input string) error {
	cmd := exec.CommandContext(ctx, t.restore, "--noflush", "-w", fmt.Sprint(lockWaitSeconds))
	cmd.Env = environment()
	cmd.Stdin = strings.NewReader(input)
	cmd.WaitDelay = 5 * time.Second // what it has started may keep its output open
	// It ends with the agent, as all does in a container: one that outlived a killed
	// agent would write beside the next, which has read the rules by then. The
	// kernel goes by the thread that has started it, so that is kept until it ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr // what it lists is for nobody
	if err := t.commits.write(sections(input), func() error { return t.commits.run(cmd) }); err != nil {
		return newToolError(t.restore, err, stderr.String())
	}
	return nil
}
