package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	goiptables "github.com/coreos/go-iptables/iptables"
	"github.com/vishvananda/netlink"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/pause"
)

// lockWaitSeconds is how long a program waits for the lock of the legacy variant.
const lockWaitSeconds = 5

// tools runs the iptables programs of one IP family.
type tools struct {
	family   dataplane.Family
	modes    *ownership // whose chains are watched
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

// restorePace is 2 minutes, of which 5 s are for the lock, and 20 ms a line, many
// times what slow machines need. A call of 3,000 lines has 3 minutes. One that takes longer
// is stuck: it is killed, its current section is not applied, and Apply fails. One
// that cannot be killed no longer counts as progress, so that the kubelet restarts the agent.
func restorePace() pace {
	return pace{least: 2 * time.Minute, perLine: 20 * time.Millisecond, beat: 20 * time.Second}
}

func (p pace) limit(lines int) time.Duration { return p.least + time.Duration(lines)*p.perLine }

// during runs do, which counts as progress of ctx until the time for a number of lines is
// over, when the context that do gets ends.
func (p pace) during(ctx context.Context, lines int, do func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, p.limit(lines))
	defer cancel()
	beating, done := context.WithCancel(limited)
	var beats sync.WaitGroup
	beats.Go(func() {
		for pause.For(beating, clock.RealClock{}, p.beat) {
			dataplane.Progress(ctx)
		}
	})
	err := do(limited)
	done()
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

func nodeKernel(family dataplane.Family, modes *ownership, o *Options) kernel {
	t := newTools(family, o.Programs, o.Commits)
	t.modes = modes
	return t
}

// find finds the programs until they have been found.
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
	if err != nil { // it reads the version again
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
		one.modes = t.modes
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

// What the programs print about a match that they know and the kernel does not, and about
// one that they do not know. They load the kernel's module for it if there is one.
const (
	textNoModule = "missing kernel module"
	textNoMatch  = "Couldn't load match"
)

func (t *tools) lacks(ctx context.Context, matches []string) ([]string, error) {
	var out []string
	for _, m := range matches {
		text, err := execute(ctx, func(help io.Reader) error {
			_, err := io.Copy(io.Discard, help)
			return err //nolint:wrapcheck // the caller adds what for
		}, t.command, "-m", m, "--help")
		lacks := strings.Contains(text, textNoModule)
		if err != nil {
			e, ok := errors.AsType[*toolError](err)
			lacks = lacks || strings.Contains(text, textNoMatch)
			if !lacks || ok && e.temporary() {
				return nil, fmt.Errorf("check for the match %s: %w", m, err)
			}
		}
		if lacks {
			out = append(out, m)
		}
	}
	return out, nil
}

func (t *tools) legacy() bool { return variantOf(t.version) == VariantLegacy }

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
	state := newKernelState()
	_, err := execute(ctx, func(out io.Reader) error {
		return state.read(progressReader{out, ctx}) // while it prints, it is not stuck
	}, t.save)
	if err != nil {
		return nil, fmt.Errorf("read the rules: %w", err)
	}
	return state, nil
}

func (t *tools) list(ctx context.Context, in chainID) ([]kernelRule, error) {
	defer dataplane.Progress(ctx)
	state := newKernelState()
	head := "*" + in.table + "\n:" + in.name + " -\n"
	_, err := execute(ctx, func(out io.Reader) error {
		return state.read(io.MultiReader(strings.NewReader(head), out))
	}, t.command, "-w", strconv.Itoa(lockWaitSeconds), "-t", in.table, "-S", in.name)
	if err != nil {
		return nil, fmt.Errorf("list the rules of chain %s: %w", in.name, err)
	}
	return state.rulesIn(in)
}

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
	if rewritten, known := t.entries(); known {
		lines += rewritten
	}
	return lines
}

func (t *tools) run(ctx context.Context, input string) error {
	cmd := exec.CommandContext(ctx, t.restore, "--noflush", "-w", strconv.Itoa(lockWaitSeconds))
	cmd.Env = environment()
	cmd.Stdin = strings.NewReader(input)
	cmd.WaitDelay = 5 * time.Second // its children may leave its output open
	// It ends with the agent, as everything does in a container: if it outlived a killed
	// agent, it would write after the next one has read the rules. The
	// kernel watches the thread that has started it, so this thread must stay.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr // what listAll prints is not needed
	if err := t.commits.write(sections(input), func() error { return t.commits.run(cmd) }); err != nil {
		e := newToolError(t.restore, err, stderr.String())
		e.input = input
		return e
	}
	return nil
}

// RemoveChain deletes an empty chain from tables of one variant, in one call for
// each table. It ignores a chain that does not exist or to which rules jump, and
// a variant whose programs the node lacks.
func (p *Programs) RemoveChain(ctx context.Context, commits *Commits, family dataplane.Family, variant Variant, chain string, tables ...string) error {
	t := newTools(family, NewPrograms(p.directory, variant), commits)
	if err := t.find(ctx); errors.Is(err, dataplane.ErrUnsupported) {
		return nil
	} else if err != nil {
		return err
	}
	for _, in := range tables {
		err := t.apply(ctx, sectionOf(in, []string{"-X " + chain}))
		if err != nil && !isRejection(err) {
			return fmt.Errorf("delete chain %s of table %s: %w", chain, in, err)
		}
	}
	return nil
}

// subscribe reports changes of the node's addresses of the family until done is closed or
// the kernel ends the subscription.
func (d *Dataplane) subscribe(done <-chan struct{}) (<-chan struct{}, error) {
	updates := make(chan netlink.AddrUpdate)
	if err := netlink.AddrSubscribe(updates, done); err != nil {
		return nil, fmt.Errorf("follow the addresses of the node's interfaces: %w", err)
	}
	events := make(chan struct{})
	go func() {
		defer close(events)
		for u := range updates {
			if ip, ok := netip.AddrFromSlice(u.LinkAddress.IP); ok && d.family.Of(ip.Unmap()) {
				events <- struct{}{}
			}
		}
	}()
	return events, nil
}
