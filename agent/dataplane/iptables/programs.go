package iptables

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// Programs are the iptables programs of a node. They decide, once for both IP
// families, which variant is used: the one in which the kubelet or a proxy has
// its chains already. Rules in the other would act beside those.
type Programs struct {
	folder string
	only   Variant

	mu      sync.Mutex // guards the following
	variant Variant    // empty until decided; then it stays
	used    map[dataplane.Family]program
	found   map[dataplane.Family][]program // kept from the decision on
	// both are the programs of either variant, where only one may be used.
	both *Programs
}

// NewPrograms looks for programs in a directory, in PATH if it is empty. A variant
// that is not empty is used, or cleaned, whatever is found in the kernel.
func NewPrograms(folder string, only Variant) *Programs {
	return &Programs{folder: folder, only: only,
		used: map[dataplane.Family]program{}, found: map[dataplane.Family][]program{}}
}

// Version is version and variant of the programs in use, such as "1.8.9
// (nf_tables)"; empty until they have been found. Where the two IP families
// differ it names both.
func (p *Programs) Version() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	v4, v6 := p.used[dataplane.IPv4].version, p.used[dataplane.IPv6].version
	switch {
	case v4 == "":
		return v6
	case v6 == "" || v6 == v4:
		return v4
	default:
		return v4 + ", IPv6: " + v6
	}
}

// find returns the program to use for a family. Where the variant cannot be
// decided on, it fails, and the next call looks anew: whoever has got a program
// keeps it.
func (p *Programs) find(ctx context.Context, family dataplane.Family) (program, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	installed, err := p.installed(ctx, family)
	if err != nil {
		return program{}, err
	}
	variant := p.variant
	if variant == "" {
		if variant, err = p.decide(ctx); err != nil {
			return program{}, fmt.Errorf("find out which variant of iptables this node uses: %w", err)
		}
		p.variant = variant
	}
	for _, found := range installed {
		if found.variant == variant {
			p.used[family] = found
			return found, nil
		}
	}
	return program{}, p.missing(family, variant)
}

func (p *Programs) missing(family dataplane.Family, variant Variant) error {
	return fmt.Errorf("%w: no %s of the %s variant found; install the iptables package on the node",
		dataplane.ErrUnsupported, commandOf(family), variant)
}

func commandOf(family dataplane.Family) string {
	if family == dataplane.IPv6 {
		return "ip6tables"
	}
	return "iptables"
}

// installed returns the programs of a family, at most one of each variant, that
// with the plain name first.
func (p *Programs) installed(ctx context.Context, family dataplane.Family) ([]program, error) {
	if found, ok := p.found[family]; ok {
		return found, nil
	}
	var (
		found []program
		errs  []error
	)
	for _, suffix := range []string{"", NFTables.suffix(), Legacy.suffix()} {
		one, err := lookUp(ctx, filepath.Join(p.folder, commandOf(family))+suffix, family)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if (p.only == "" || p.only == one.variant) &&
			!slices.ContainsFunc(found, func(f program) bool { return f.variant == one.variant }) {
			found = append(found, one)
		}
	}
	switch {
	case len(found) > 0:
		if p.variant != "" {
			p.found[family] = found
		}
		return found, nil
	case p.only != "":
		return nil, p.missing(family, p.only)
	default:
		return nil, errs[0] // of the plain name
	}
}

// decide chooses the variant. It fails where the kernel could not be read.
func (p *Programs) decide(ctx context.Context) (Variant, error) {
	var (
		programs []program
		errs     []error
	)
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		// One family may have no programs: find tells of that.
		installed, err := p.installed(ctx, family)
		programs, errs = append(programs, installed...), append(errs, err)
	}
	if len(programs) == 0 {
		return "", errors.Join(errs...)
	}
	usual := programs[0].variant // of the plain name
	holds := map[Variant]bool{}
	for _, one := range programs {
		holds[one.variant] = holds[one.variant] || one.variant != Legacy || len(legacyTables(one.family)) > 0
	}
	if len(holds) == 1 || usual == NFTables && !holds[Legacy] {
		return usual, nil // as most nodes are: there is no other, or nothing in it
	}
	seen := map[Variant]*traces{NFTables: {}, Legacy: {}}
	for _, one := range programs {
		switch err := one.trace(ctx, seen[one.variant]); {
		case isLacking(err):
			delete(holds, one.variant)
		case err != nil:
			return "", err
		}
	}
	if len(holds) == 2 {
		return cmp.Or(prefer(*seen[NFTables], *seen[Legacy]), usual), nil
	}
	for v := range holds {
		return v, nil
	}
	return usual, nil
}

// warnings say what is wrong about the variant in use, as the kernel is now.
func (p *Programs) warnings(ctx context.Context, family dataplane.Family) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	use := p.used[family].variant
	from := p
	if p.only != "" { // what is left in the other variant acts all the same
		if p.both == nil {
			p.both = NewPrograms(p.folder, "")
			p.both.variant = p.only // decided, so that what is found is kept
		}
		from = p.both
	}
	installed, err := from.installed(ctx, family)
	if err != nil || len(installed) < 2 {
		return nil
	}
	var mine, others program
	for _, one := range installed {
		if one.variant == use {
			mine = one
		} else {
			others = one
		}
	}
	// A failure says nothing here: whoever programs the rules fails, too, or the
	// kernel lacks the other variant.
	var here, there traces
	if others.trace(ctx, &there) != nil || there.hint && mine.trace(ctx, &here) != nil {
		return nil
	}
	if p.only != "" {
		there.hint = false // another program has decided otherwise
	}
	return variantWarnings(use, others.command, here, there)
}

// all returns the programs of each variant that may hold rules of a family.
func (p *Programs) all(ctx context.Context, family dataplane.Family) ([]*Programs, error) {
	installed, err := p.installed(ctx, family)
	if err != nil {
		return nil, err
	}
	var out []*Programs
	for _, one := range installed {
		if one.variant == Legacy && len(legacyTables(family)) == 0 {
			continue
		}
		if err := one.trace(ctx, &traces{}); isLacking(err) && len(installed) > 1 {
			continue
		}
		out = append(out, NewPrograms(p.folder, one.variant))
	}
	return out, nil
}

// program is an iptables or ip6tables of one variant.
type program struct {
	command string
	family  dataplane.Family
	version string // such as "1.8.9 (nf_tables)"
	variant Variant
}

func (p program) save() string    { return p.command + "-save" }
func (p program) restore() string { return p.command + "-restore" }

func lookUp(ctx context.Context, command string, family dataplane.Family) (program, error) {
	one := program{command: command, family: family}
	for _, name := range []string{command, one.restore(), one.save()} {
		if _, err := exec.LookPath(name); err != nil {
			return one, fmt.Errorf("%w: %s not found; install the iptables package on the node: %w", dataplane.ErrUnsupported, name, err)
		}
	}
	cmd := exec.CommandContext(ctx, command, "--version")
	cmd.Env = environment()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	version, err := cmd.Output()
	if err != nil {
		return one, notRunning(newToolError(command+" --version", err, stderr.String()))
	}
	one.version = versionText(string(version))
	one.variant = variantOf(one.version)
	return one, nil
}

// notRunning is why a program could not tell its version. It says that the node lacks
// it, unless another try may go better.
func notRunning(err *toolError) error {
	if err.passes() {
		return err
	}
	return fmt.Errorf("%w: %w", dataplane.ErrUnsupported, err)
}

// trace reads what the variant holds, in one run: iptables-nft-save gets the
// rules of all tables from the kernel whichever it is asked for. Without a table
// to read, iptables-legacy-save reads those that are there; one that it is asked
// for it would make.
func (p program) trace(ctx context.Context, into *traces) error {
	if p.variant == Legacy && len(legacyTables(p.family)) == 0 {
		return nil
	}
	cmd := exec.CommandContext(ctx, p.save())
	cmd.Env = environment()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("run %s: %w", p.save(), err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run %s: %w", p.save(), err)
	}
	readErr := into.read(out)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("read the rules: %w", newToolError(p.save(), err, stderr.String()))
	}
	return readErr
}

// isLacking reports whether a program ran and could not read the kernel for
// another reason than missing rights, or what passes: the kernel lacks its variant,
// and so holds nothing of it.
func isLacking(err error) bool {
	var e *toolError
	return errors.As(err, &e) && e.cause == rejected && !e.passes()
}

// legacyTables lists the tables that the legacy variant has.
func legacyTables(family dataplane.Family) []string {
	file := "ip_tables_names"
	if family == dataplane.IPv6 {
		file = "ip6_tables_names"
	}
	// Absent where the kernel has not loaded that variant. Of the thread: in
	// tests it is in another network namespace than its process.
	names, err := os.ReadFile("/proc/thread-self/net/" + file)
	if err != nil {
		return nil
	}
	return strings.Fields(string(names))
}
