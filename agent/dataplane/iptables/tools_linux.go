package iptables

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

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
}

func newTools(family dataplane.Family, programs *Programs, commits *Commits) *tools {
	return &tools{family: family, programs: programs, commits: commits}
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
	readErr := state.read(out)
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("read the rules: %w", newToolError(t.save, err, stderr.String()))
	}
	return state, readErr
}

// apply runs iptables-restore. Each section of input is applied as a whole or
// not at all.
func (t *tools) apply(ctx context.Context, input string) error {
	if input == "" {
		return nil
	}
	defer dataplane.Progress(ctx)
	cmd := exec.CommandContext(ctx, t.restore, "--noflush", "-w", fmt.Sprint(lockWaitSeconds))
	cmd.Env = environment()
	cmd.Stdin = strings.NewReader(input)
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
