package iptables

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// Programs are the iptables programs of a node. They select, once for both IP
// families, the variant to use: the one in which the kubelet or a proxy has
// its chains already. Rules in the other would act beside those.
type Programs struct {
	directory string
	only      Variant

	mu      sync.Mutex // guards the following
	variant Variant    // empty until decided; then it stays
	used    map[dataplane.Family]program
	found   map[dataplane.Family][]program // stays after the decision
}

// NewPrograms looks for programs in a directory, in PATH if it is empty. A variant
// that is not empty is used, or cleaned up, whatever is found in the kernel.
func NewPrograms(directory string, only Variant) *Programs {
	return &Programs{directory: directory, only: only, variant: only,
		used: map[dataplane.Family]program{}, found: map[dataplane.Family][]program{}}
}

// Version is version and variant of the programs in use, such as "1.8.9
// (nf_tables)"; empty until they have been found. If the IP families
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

// find returns the program to use for a family. If the variant cannot be
// decided on, it fails, and the next call tries again.
func (p *Programs) find(ctx context.Context, family dataplane.Family) (program, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	installed, err := p.installed(ctx, family)
	switch {
	case err != nil && p.only != "":
		return program{}, missing(family, p.only)
	case err != nil:
		return program{}, err
	}
	variant := p.variant
	if variant == "" {
		if variant, err = p.decide(ctx); err != nil {
			return program{}, fmt.Errorf("find out which variant of iptables this node uses: %w", err)
		}
		p.variant = variant
	}
	i := slices.IndexFunc(installed, program{variant: variant}.sameVariant)
	if i < 0 {
		return program{}, missing(family, variant)
	}
	p.used[family] = installed[i]
	return installed[i], nil
}

func missing(family dataplane.Family, variant Variant) error {
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
	for _, suffix := range []string{"", VariantNFT.suffix(), VariantLegacy.suffix()} {
		one, err := lookUp(ctx, filepath.Join(p.directory, commandOf(family))+suffix, family)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if !slices.ContainsFunc(found, one.sameVariant) {
			found = append(found, one)
		}
	}
	if len(found) == 0 {
		return nil, errs[0] // of the plain name
	}
	if slices.ContainsFunc(found, program{variant: p.variant}.sameVariant) { // decided
		p.found[family] = found
	}
	return found, nil
}

// decide selects the variant. It fails if the kernel cannot be read.
func (p *Programs) decide(ctx context.Context) (Variant, error) {
	var (
		programs []program
		errs     []error
	)
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		// One family may have no programs: find reports that.
		installed, err := p.installed(ctx, family)
		programs, errs = append(programs, installed...), append(errs, err)
	}
	if len(programs) == 0 {
		return "", errors.Join(errs...)
	}
	usual := programs[0].variant // of the plain name
	inUse := map[Variant]bool{}
	for _, one := range programs {
		inUse[one.variant] = inUse[one.variant] || one.variant != VariantLegacy || len(legacyTables(one.family)) > 0
	}
	if len(inUse) == 1 || usual == VariantNFT && !inUse[VariantLegacy] {
		return usual, nil // most nodes: there is no other, or nothing in it
	}
	seen := map[Variant]*traces{VariantNFT: {}, VariantLegacy: {}}
	for _, one := range programs {
		switch err := one.trace(ctx, seen[one.variant]); {
		case isLacking(err):
			delete(inUse, one.variant)
		case err != nil:
			return "", err
		}
	}
	if len(inUse) == 2 {
		return cmp.Or(prefer(*seen[VariantNFT], *seen[VariantLegacy]), usual), nil
	}
	for v := range inUse {
		return v, nil
	}
	return usual, nil
}

// warnings report problems of the variant in use, as the kernel is now.
func (p *Programs) warnings(ctx context.Context, family dataplane.Family) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	use := p.used[family].variant
	installed, err := p.installed(ctx, family)
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
	// A failure means nothing here: programming the rules fails, too, or the
	// kernel lacks the other variant.
	var here, there traces
	if others.trace(ctx, &there) != nil || there.hint && mine.trace(ctx, &here) != nil {
		return nil
	}
	if p.only != "" {
		there.hint = false // the administrator has decided otherwise
	}
	return variantWarnings(use, others.command, here, there)
}

// all returns the programs of each variant that may have rules of a family.
func (p *Programs) all(ctx context.Context, family dataplane.Family) ([]*Programs, error) {
	installed, err := p.installed(ctx, family)
	if err != nil {
		return nil, err
	}
	if p.only != "" {
		if installed, _ = split(installed, program{variant: p.only}.sameVariant); len(installed) == 0 {
			return nil, missing(family, p.only)
		}
	}
	var out []*Programs
	for _, one := range installed {
		if one.variant == VariantLegacy && len(legacyTables(family)) == 0 {
			continue
		}
		if err := one.trace(ctx, &traces{}); isLacking(err) && len(installed) > 1 {
			continue
		}
		out = append(out, NewPrograms(p.directory, one.variant))
	}
	return out, nil
}

type program struct {
	command string
	family  dataplane.Family
	version string // such as "1.8.9 (nf_tables)"
	variant Variant
}

func (p program) save() string               { return p.command + "-save" }
func (p program) restore() string            { return p.command + "-restore" }
func (p program) sameVariant(o program) bool { return p.variant == o.variant }

func lookUp(ctx context.Context, command string, family dataplane.Family) (program, error) {
	one := program{command: command, family: family}
	for _, name := range []string{command, one.restore(), one.save()} {
		if _, err := exec.LookPath(name); err != nil {
			return one, fmt.Errorf("%w: %s not found; install the iptables package on the node: %w", dataplane.ErrUnsupported, name, err)
		}
	}
	var version []byte
	_, err := execute(ctx, func(out io.Reader) (err error) {
		version, err = io.ReadAll(out)
		return err
	}, command, "--version")
	if err != nil {
		return one, notRunning(err)
	}
	one.version = strings.TrimSpace(string(version))
	if _, short, ok := strings.Cut(one.version, " v"); ok { // "1.8.9 (nf_tables)" of "iptables v1.8.9 (nf_tables)"
		one.version = short
	}
	one.variant = variantOf(one.version)
	return one, nil
}

// execute runs a program and has read read its output. It returns what the program prints about
// errors.
func execute(ctx context.Context, read func(io.Reader) error, name string, args ...string) (messages string, err error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = environment()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return "", newToolError(name, err, "")
	}
	readErr := read(out)
	if readErr != nil {
		_, _ = io.Copy(io.Discard, out) // a full pipe would keep the program from ending
	}
	if err := cmd.Wait(); err != nil {
		return stderr.String(), newToolError(strings.Join(append([]string{name}, args...), " "), err, stderr.String())
	}
	return stderr.String(), readErr
}

// environment makes messages searchable.
func environment() []string { return append(os.Environ(), "LC_ALL=C") }

// notRunning is why a program did not print its version. Unless another try may succeed, the node
// lacks the program.
func notRunning(err error) error {
	if e, ok := errors.AsType[*toolError](err); ok && e.temporary() {
		return err
	}
	return fmt.Errorf("%w: %w", dataplane.ErrUnsupported, err)
}

// trace reads what the variant has, in one run: iptables-nft-save gets the
// rules of all tables from the kernel whichever it is asked for. Without a table
// to read, iptables-legacy-save reads those that exist; one that it is asked
// for it would make.
func (p program) trace(ctx context.Context, into *traces) error {
	if p.variant == VariantLegacy && len(legacyTables(p.family)) == 0 {
		return nil
	}
	if _, err := execute(ctx, into.read, p.save()); err != nil {
		return fmt.Errorf("read the rules: %w", err)
	}
	return nil
}

// isLacking reports whether a program ran and failed neither temporarily nor for missing
// permissions: the kernel lacks its variant.
func isLacking(err error) bool {
	e, ok := errors.AsType[*toolError](err)
	return ok && e.cause == rejected && !e.temporary()
}

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
