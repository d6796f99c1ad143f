package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables/iptablesmodel"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs/ipvsmodel"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/kernelmodel"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/ipvs/modeltest"
	"github.com/nodeproxy-io/nodeproxy/test/uml"
)

// How much is compared in each family.
const (
	modelRounds  = 12 // each with rules of its own
	modelSteps   = 3  // in each round, with changes between them
	modelPackets = 5  // in each step
	modelAsked   = 4  // in each step, for each ipset
)

// TestModel compares package ipvsmodel to the kernel: it makes the same random changes of virtual servers, ipsets and addresses
// in the kernel and in the model, and compares what both reject and what both then hold.
// Then it sends random packets through random rules, and compares which rules they meet,
// what IPVS chooses for them, where they go and what answers them. NODEPROXY_SEED
// repeats what is drawn, not what the kernel's schedulers choose.
func TestModel(t *testing.T) { uml.InKernel(t, machine(), model) }

func model(t *testing.T) {
	seed := rand.Uint64()
	if text := os.Getenv("NODEPROXY_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		check(t, err)
	}
	t.Logf("to repeat: NODEPROXY_SEED=%d", seed)
	counts := map[string]int{}
	for i, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		t.Run(string(family), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, uint64(i))) //nolint:gosec // to be repeated
			c := newComparison(t, family, r, counts)
			for n := range modelRounds {
				c.round(n)
			}
		})
	}
	if t.Failed() {
		return
	}
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("%4d %s", counts[what], what)
	}
	for what, n := range enough {
		if counts[what] < n {
			t.Errorf("%s: %d, want %d at least", what, counts[what], n)
		}
	}
}

// comparison is the kernel of a node, and the model of one.
type comparison struct {
	*modeltest.Lab
	random *modeltest.Random
	kernel ipvs.Kernel
	model  *ipvsmodel.Kernel
	six    bool
	rules  string
	// met are the rules that packets have met by the model since the kernel's counters
	// were read; inexact: it does not know some of them.
	met     map[string]int
	inexact bool
	// lost: the model does not know which clients the kernel's rules remember. It sends
	// no more packets in the round.
	lost bool
	// sent are the packets of the round.
	sent []kernelmodel.Packet
	// changes are those of the round, human-readable.
	changes []string
	// counts are how often each kind of thing was compared.
	counts map[string]int
}

func newComparison(t *testing.T, family dataplane.Family, r *rand.Rand, counts map[string]int) *comparison {
	six := family == dataplane.IPv6
	c := &comparison{
		Lab: modeltest.NewLab(t, six, ""), kernel: ipvs.NewKernel(family, ""), six: six,
		model: ipvsmodel.New(family, modeltest.Node(six)...), counts: counts,
	}
	if err := c.Load(""); err != nil { // which loads the modules that track connections
		c.fail("%v", err)
	}
	c.random = &modeltest.Random{Rand: r, Six: six, SCTP: c.SCTP()}
	c.random.Matches = c.random.IPVSMatches()
	check(t, c.kernel.Open())
	for _, k := range []ipvs.Kernel{c.kernel, c.model} { // as the data plane does
		check(t, k.SetSysctl("net/ipv4/vs/conntrack", "1"), k.SetSysctl("net/ipv4/vs/expire_quiescent_template", "1"))
	}
	return c
}

// round fills the node, changes it and sends packets, and empties it.
func (c *comparison) round(n int) {
	c.Helper()
	c.changes, c.sent, c.lost = nil, nil, false
	for _, change := range c.random.Fill() {
		c.change(change)
	}
	c.random.Few, c.random.Chance = n%3 != 2, n%4 == 3
	c.rules = c.random.RuleSet()
	for _, err := range []error{c.model.Tables.Restore(c.rules), c.Load(c.rules)} {
		if err != nil {
			c.fail("%v", err)
		}
	}
	for range modelSteps {
		for range 1 + c.random.IntN(6) {
			c.change(c.random.Change(c.keys()))
		}
		c.compareState()
		c.ask()
		c.met, c.inexact = map[string]int{}, c.random.Chance
		for n := 0; n < modelPackets && !c.lost; n++ {
			c.send()
		}
		c.compareRules()
	}
	c.empty()
}

// empty removes everything. Ipsets that rules ask go after the rules: before, they are
// rejected.
func (c *comparison) empty() {
	c.Helper()
	remove := modeltest.Change{Name: "delete the sets", Do: func(k ipvs.Kernel) error { return k.DeleteSets(modeltest.SetNames()) }}
	c.change(remove)
	c.compareState()
	for _, key := range c.keys() {
		c.change(modeltest.Change{Name: "delete " + key.String(), Do: func(k ipvs.Kernel) error { return k.DeleteServer(key) }})
	}
	c.change(modeltest.Change{Name: "reclaim", Do: func(k ipvs.Kernel) error { return k.Reclaim(nil) }})
	c.change(modeltest.Change{Name: "delete the device", Do: func(k ipvs.Kernel) error { return k.DeleteDevice() }})
	if err := c.Load(""); err != nil {
		c.fail("%v", err)
	}
	tables := iptablesmodel.NewKernel(modeltest.Node(c.six)...)
	tables.Balancer = c.model.Tables.Balancer
	c.model.Tables = tables
	c.change(remove)
	c.compareState()
}

// fail prints what is needed to understand a difference.
func (c *comparison) fail(format string, args ...any) {
	c.Helper()
	var state strings.Builder
	for _, line := range []string{"ipvsadm -Sn", "ipset save -sorted", "ip address show"} {
		words := strings.Fields(line)
		out, _ := exec.Command(words[0], words[1:]...).CombinedOutput() //nolint:gosec // a test's own words
		fmt.Fprintf(&state, "== %s\n%s", line, out)
	}
	c.Fatalf("%s\n%s\n== changes\n%s\n== rules\n%s", fmt.Sprintf(format, args...), &state, strings.Join(c.changes, "\n"), c.rules)
}

// keys are the virtual servers, sorted.
func (c *comparison) keys() []ipvs.Key {
	c.Helper()
	servers, err := c.model.Servers()
	if err != nil {
		c.fail("%v", err)
	}
	return slices.SortedFunc(maps.Keys(servers), func(a, b ipvs.Key) int { return strings.Compare(a.String(), b.String()) })
}

// kindOf distinguishes the errors that the data plane distinguishes.
func kindOf(err error) string {
	switch {
	case err == nil:
		return "done"
	case errors.Is(err, fs.ErrExist):
		return "it exists"
	case errors.Is(err, fs.ErrNotExist):
		return "it does not exist"
	default:
		return "rejected"
	}
}

// change makes a change in the kernel and in the model.
func (c *comparison) change(change modeltest.Change) {
	c.Helper()
	c.changes = append(c.changes, change.Name)
	byModel, byKernel := change.Do(c.model), change.Do(c.kernel)
	if kindOf(byModel) != kindOf(byKernel) {
		c.fail("%s: %v by the model, %v by the kernel", change.Name, byModel, byKernel)
	}
	c.counts["change: "+kindOf(byModel)]++
}

// compareState compares what the kernel and the model have.
func (c *comparison) compareState() {
	c.Helper()
	byModel, byKernel := c.state(c.model), c.state(c.kernel)
	if diff := cmp.Diff(byModel, byKernel); diff != "" {
		c.fail("what is held differs (-model +kernel):\n%s", diff)
	}
	for _, a := range c.random.Virtual() {
		if err := c.AwaitLocal(a, c.model.Tables.Balancer.Bound(a)); err != nil {
			c.fail("%v", err)
		}
	}
}

// state is what one of them holds, as text.
func (c *comparison) state(k ipvs.Kernel) []string {
	c.Helper()
	var out []string
	servers, err := k.Servers()
	for key, s := range servers {
		out = append(out, fmt.Sprintf("%s %+v", key, s))
		reals, failed := k.Reals(key)
		err = errors.Join(err, failed)
		for a, r := range reals {
			out = append(out, fmt.Sprintf("%s %s %d %d", key, a, r.Weight, r.Forwarding))
		}
	}
	bound, exists, failed := k.Bound()
	err = errors.Join(err, failed)
	out = append(out, fmt.Sprintf("device %t", exists))
	for _, a := range bound {
		out = append(out, "device "+a.String())
	}
	sets, failed := k.Sets(modeltest.SetNames())
	if err = errors.Join(err, failed); err != nil {
		c.fail("%v", err)
	}
	for name, entries := range sets {
		out = append(out, "set "+string(name))
		for _, e := range entries {
			out = append(out, fmt.Sprintf("set %s %s", name, e))
		}
	}
	slices.Sort(out)
	return out
}

// ask compares by the ipset program whether ipsets have the packets' entries.
func (c *comparison) ask() {
	c.Helper()
	var questions strings.Builder
	var kinds []ipvs.SetType
	var byModel []bool
	for _, name := range modeltest.SetNames() {
		for range modelAsked {
			p := c.random.Packet()
			kind, list := modeltest.Sets[name], modeltest.Directions(modeltest.Sets[name])
			asked := strings.Split(list[c.random.IntN(len(list))], ",")
			if kind == ipvs.BitmapPort && p.Protocol == "sctp" {
				p.Protocol = "tcp" // the program asks for a port without its protocol
			}
			in, err := c.model.Tables.Balancer.InSet(string(name), asked, p)
			if err != nil {
				c.fail("%v", err)
			}
			fmt.Fprintf(&questions, "test %s %s\n", name, entryOf(kind, asked, p))
			kinds, byModel = append(kinds, kind), append(byModel, in)
		}
	}
	ask := exec.Command("ipset", "-")
	ask.Stdin = strings.NewReader(questions.String() + "quit\n")
	out, _ := ask.CombinedOutput() // no entry in a set is an error of the program
	answers := answerPattern.FindAllSubmatch(out, -1)
	if len(answers) != len(byModel) {
		c.fail("%d answers to %d questions\n%s\n%s", len(answers), len(byModel), &questions, out)
	}
	for i, answer := range answers {
		byKernel := string(answer[1]) == "is in set"
		if byModel[i] != byKernel {
			c.fail("%s: %t by the model", answer[0], byModel[i])
		}
		c.counts[fmt.Sprintf("in %s: %t", kinds[i], byKernel)]++
	}
}

// answerPattern is what the ipset program answers to a question.
var answerPattern = regexp.MustCompile(`\S+ (is in set|is NOT in set) \S+`)

// entryOf is what a rule with these directions looks for in a set of a type.
func entryOf(kind ipvs.SetType, directions []string, p kernelmodel.Packet) string {
	address := func(direction string) string {
		if direction == "src" {
			return p.Source.String()
		}
		return p.Destination.Addr().String()
	}
	port := fmt.Sprintf("%s:%d", p.Protocol, p.Destination.Port())
	switch kind {
	case ipvs.HashIP:
		return address(directions[0])
	case ipvs.HashIPPort:
		return address(directions[0]) + "," + port
	case ipvs.BitmapPort:
		return strconv.Itoa(int(p.Destination.Port()))
	default:
		return address(directions[0]) + "," + port + "," + address(directions[2])
	}
}

// packet draws the first packet of a connection, mostly one to a virtual server, often
// one more of a client that was there. What a process sends to an address of the node has
// that as source, unless it chose another.
func (c *comparison) packet() kernelmodel.Packet {
	if len(c.sent) > 0 && c.random.IntN(10) < 5 {
		return c.sent[c.random.IntN(len(c.sent))]
	}
	p := c.random.Packet()
	for p.State != "" {
		p = c.random.Packet()
	}
	if keys := c.keys(); len(keys) > 0 && c.random.IntN(10) < 8 {
		key := keys[c.random.IntN(len(keys))]
		p.Destination, p.Protocol = netip.AddrPortFrom(key.Addr, key.Port), strings.ToLower(string(key.Protocol))
	}
	if p.In == "" && c.model.Tables.Balancer.Bound(p.Destination.Addr()) && c.random.IntN(2) == 0 {
		p.Source = p.Destination.Addr()
	}
	return p
}

// send sends a packet and compares what becomes of it.
func (c *comparison) send() {
	c.Helper()
	p := c.packet()
	outcomes, err := c.model.Tables.Trace(p)
	if err != nil {
		c.fail("%+v: %v", p, err)
	}
	local := append(modeltest.Node(c.six), c.random.Virtual()...)
	if modeltest.Unpredictable(p, outcomes, local...) {
		return
	}
	c.sent = append(c.sent, p)
	seen := c.SendUncounted(p)
	real := c.Chosen(p)
	var all []string
	// The node's own packet is tracked even if a rule drops it later: an outcome that
	// states where it went is clearer.
	slices.SortStableFunc(outcomes, func(a, b kernelmodel.Outcome) int { return b.Endpoint.Compare(a.Endpoint) })
	for i := range outcomes {
		o := &outcomes[i]
		step := slices.IndexFunc(o.Path, func(s kernelmodel.Step) bool { return s.Kind == kernelmodel.VirtualServer })
		differences := append(c.choice(p, o, step, real), modeltest.Differences(p, o, &seen, false)...)
		if len(differences) == 0 {
			// The model has one outcome for all real servers to which packets are
			// stopped, whichever rules they met.
			c.lost = c.lost || step >= 0 && o.Fate != kernelmodel.Delivered && len(c.candidates(p, virtualServer(p, o.Path[step]))) > 1
			modeltest.CountMet(c.met, o)
			c.model.Tables.Remember(*o)
			c.done(p, o, step, real)
			return
		}
		all = append(all, fmt.Sprintf("%s %s: %s", o.Fate, o.Endpoint, strings.Join(differences, "\n")))
	}
	c.fail("%+v\n%s\n%+v, chosen %s", p, strings.Join(all, "\n"), seen, real)
}

// compareRules compares which rules packets have met.
func (c *comparison) compareRules() {
	c.Helper()
	met := c.Met()
	if c.inexact || c.lost {
		return
	}
	if diff := cmp.Diff(c.met, met); diff != "" {
		c.fail("the last of %+v met other rules (-model +kernel):\n%s", c.sent, diff)
	}
	c.counts["packets whose rules are compared"] += modelPackets
	for _, n := range met {
		c.counts["rules met"] += n
	}
}

// virtualServer is the one that a step of an outcome is about.
func virtualServer(p kernelmodel.Packet, s kernelmodel.Step) ipvs.Key {
	to := netip.MustParseAddrPort(s.Chain)
	return ipvs.Key{Addr: to.Addr(), Port: to.Port(), Protocol: v1alpha1.Protocol(strings.ToUpper(p.Protocol))}
}

// candidates are the real servers that the client may get by the model. The zero one
// stands for a rejection.
func (c *comparison) candidates(p kernelmodel.Packet, key ipvs.Key) []netip.AddrPort {
	p.Destination = netip.AddrPortFrom(key.Addr, key.Port)
	out, _ := c.model.Tables.Balancer.Choose(p)
	if len(out) == 0 {
		return []netip.AddrPort{{}}
	}
	return out
}

// choice lists where the kernel's choice is not one that the model allows. The step is
// that of IPVS on the path of the outcome; -1: there is none.
func (c *comparison) choice(p kernelmodel.Packet, o *kernelmodel.Outcome, step int, real netip.AddrPort) []string {
	if step < 0 {
		if real.IsValid() {
			return []string{fmt.Sprintf("IPVS chose %s, and nothing by the model", real)}
		}
		return nil
	}
	var out []string
	if list := c.candidates(p, virtualServer(p, o.Path[step])); !slices.Contains(list, real) {
		out = append(out, fmt.Sprintf("IPVS chose %s, and one of %s by the model", real, list))
	}
	if o.Fate == kernelmodel.Delivered && real != o.Endpoint {
		out = append(out, fmt.Sprintf("IPVS chose %s, and %s by the model", real, o.Endpoint))
	}
	return out
}

// done counts what was compared, and gives the model the kernel's choice.
func (c *comparison) done(p kernelmodel.Packet, o *kernelmodel.Outcome, step int, real netip.AddrPort) {
	c.Helper()
	count := func(what ...string) { c.counts[strings.Join(what, " ")]++ }
	switch {
	case step < 0 && (o.Fate == kernelmodel.Dropped || o.Fate == kernelmodel.Rejected):
		count("packet without IPVS: stopped")
		return
	case step < 0:
		count("packet without IPVS:", string(o.Fate))
		return
	case !real.IsValid():
		count("packet to IPVS: rejected for want of a real server")
		c.model.Remember(virtualServer(p, o.Path[step]), p.Source, real)
		return
	case o.Fate != kernelmodel.Delivered:
		count("packet to IPVS: stopped by a rule afterwards")
	default:
		count("packet to IPVS: delivered,", p.Protocol)
		count("packet to IPVS: delivered, sent by the node", strconv.FormatBool(p.In == ""))
		count("packet to IPVS: delivered, masqueraded", strconv.FormatBool(o.Masqueraded))
		count("packet to IPVS: delivered, to the node itself", strconv.FormatBool(slices.Contains(modeltest.Node(c.six), real.Addr())))
	}
	key := virtualServer(p, o.Path[step])
	reals, err := c.model.Reals(key)
	if err != nil {
		c.fail("%v", err)
	}
	eligible := 0
	for _, r := range reals {
		eligible += min(r.Weight, 1)
	}
	switch {
	case eligible > 1 && len(c.candidates(p, key)) == 1:
		count("choice: kept by persistence")
	case eligible > 1:
		count("choice: one of several")
	}
	if eligible < len(reals) {
		count("choice: despite others of weight 0")
	}
	c.model.Remember(key, p.Source, real)
}

// enough is how often each kind of thing is compared at least, of both families: less
// than half of the least that any of 60 seeds gave.
var enough = map[string]int{
	"change: done": 500, "change: it exists": 15, "change: it does not exist": 6, "change: rejected": 4,
	"in hash:ip: true": 20, "in hash:ip,port: true": 8, "in hash:ip,port,ip: true": 3, "in hash:ip,port,net: true": 5, "in bitmap:port: true": 30,
	"in hash:ip: false": 50, "in hash:ip,port: false": 50, "in hash:ip,port,ip: false": 50, "in hash:ip,port,net: false": 50, "in bitmap:port: false": 30,
	"choice: one of several": 6, "choice: despite others of weight 0": 8,
	"packet to IPVS: delivered, tcp": 2, "packet to IPVS: delivered, udp": 4, "packet to IPVS: delivered, sctp": 1,
	"packet to IPVS: delivered, sent by the node true": 8, "packet to IPVS: delivered, sent by the node false": 6,
	"packet to IPVS: delivered, masqueraded true": 1, "packet to IPVS: delivered, masqueraded false": 8,
	"packet to IPVS: delivered, to the node itself true": 1, "packet to IPVS: delivered, to the node itself false": 8,
	"packet to IPVS: rejected for want of a real server": 12, "packet to IPVS: stopped by a rule afterwards": 1,
	"packet without IPVS: PASS": 4, "packet without IPVS: stopped": 3,
	"packets whose rules are compared": 40, "rules met": 50,
}
