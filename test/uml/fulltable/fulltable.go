package fulltable

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/nodeproxy-io/nodeproxy/agent/conntrack"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/load"
	"github.com/nodeproxy-io/nodeproxy/test/uml"
)

const (
	// size is how many connections the table takes.
	size = 600
	// held connections stay open all the time.
	held = 10
	// silent flows have no answer: they are evicted first.
	silent = 300
	// larger is the size that the table gets in the end.
	larger = 400000
	// dialPatience is how long a new connection may take.
	dialPatience = 250 * time.Millisecond
	// tries bound how many new connections are tried until enough have failed:
	// some evict a flow without an answer.
	tries, enough = 50, 3
)

// Measured is what came of it.
type Measured struct {
	// Tried and Failed count what was asked on connections that were open all
	// the time; Failed must be 0.
	Tried, Failed int
	// Rejected counts new connections that failed while the table was full, as
	// they must.
	Rejected int
	// RepairSeconds is the time from when the other connections ended until a
	// new one got through, ReportedSeconds until the status reported that all is well.
	RepairSeconds, ReportedSeconds float64
	// Drop and EarlyDrop are the kernel's counters as reported meanwhile.
	Drop, EarlyDrop int64
}

// Run boots a machine that runs a test of the running test binary, which does
// nothing but to call Inside, in an empty directory.
func Run(t *testing.T, test string) (Measured, error) {
	var m Measured
	out, err := uml.Run(t.Context(), uml.Options{Test: test, Directory: t.TempDir()})
	switch {
	case err != nil:
		return m, fmt.Errorf("%w\nthe test printed:\n%s", err, out.Output)
	case out.Status != 0:
		return m, fmt.Errorf("the test has failed after %v:\n%s", out.Took, out.Output)
	}
	if err := json.Unmarshal(out.Result, &m); err != nil {
		return m, fmt.Errorf("reading the result %q: %w", out.Result, err)
	}
	t.Logf("in %.1f s: %s\n%s", out.Took.Seconds(), out.Result, out.Output)
	return m, nil
}

// Inside runs the scenario in a machine that Run has booted; elsewhere it does
// nothing.
func Inside(t *testing.T) {
	if !uml.Inside() {
		return
	}
	if err := uml.Report(encode(scenario(t))); err != nil {
		t.Fatal(err)
	}
}

func scenario(t *testing.T) Measured {
	w := newWorld(t)
	w.start()
	w.Log("the agent works")
	var conns []net.Conn
	for range held {
		conns = append(conns, w.connect(clusterIP, servicePort))
	}
	open := hold(conns)
	var out Measured
	judge := sync.OnceFunc(func() {
		var failure error
		out.Tried, out.Failed, failure = open.end()
		if err := load.Planted(); err != nil {
			out.Failed, failure = out.Failed+1, err
		}
		if out.Failed > 0 || out.Tried == 0 {
			load.Lost(t, "on connections that were open, %d of %d questions got no answer: %v", out.Failed, out.Tried, failure)
		}
	})
	defer judge() // also when something else ends the test
	fillers := w.fill()
	out = w.whileFull()
	w.whileItEmpties(fillers, &out)
	judge()
	w.Log("the table has emptied")
	w.settingsOfTheMachine()
	w.stop()
	<-w.done
	return out
}

// start starts the agent. The kernel tracks no connections yet: rules bring that,
// and then the settings have to follow.
func (w *world) start() {
	if _, err := os.Stat(sysctl("max")); err == nil {
		w.Error("the kernel tracks connections before there are rules")
	}
	w.startAgent(&v1alpha1.ConntrackSettings{MaxPerCore: new(int32(1)), Min: new(int32(size))})
	w.await("a first set of rules, and the settings", func(s *v1alpha1.NodeProxyRulesStatus) error {
		c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionProgrammed)
		switch {
		case c == nil || c.Reason != v1alpha1.ReasonProgrammed || strings.Contains(c.Message, "but"):
			return fmt.Errorf("condition %+v", c)
		case s.Conntrack == nil || s.Conntrack.Max != size:
			return fmt.Errorf("conntrack %+v", s.Conntrack)
		case meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionConntrackPressure) != nil:
			return errors.New("an empty table is under pressure")
		}
		return nil
	})
	w.expect("max", size)
	w.expect("tcp_timeout_established", 86400)
	w.expect("tcp_timeout_close_wait", 3600)
	// Not one of ours; connections that are cut off are forgotten sooner.
	if err := os.WriteFile(sysctl("tcp_timeout_close"), []byte("1"), 0); err != nil {
		w.Fatal(err)
	}
}

func sysctl(name string) string { return "/proc/sys/net/netfilter/nf_conntrack_" + name }

func (w *world) read(name string) int64 {
	w.Helper()
	text, err := os.ReadFile(sysctl(name))
	if err != nil {
		w.Fatal(err)
	}
	value, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		w.Fatal(err)
	}
	return value
}

func (w *world) expect(name string, want int64) {
	w.Helper()
	if got := w.read(name); got != want {
		w.Errorf("%s is %d, want %d", name, got, want)
	}
}

func (w *world) connect(address, port string) net.Conn {
	w.Helper()
	conn, err := dial(address, port)
	if err == nil {
		err = ask(conn)
	}
	if err != nil {
		w.Fatal(err)
	}
	return conn
}

func dial(address, port string) (net.Conn, error) {
	return net.DialTimeout("tcp", net.JoinHostPort(address, port), dialPatience)
}

// fill opens connections until no more get through, first flows without an
// answer, which the kernel evicts for others.
func (w *world) fill() []net.Conn {
	w.Helper()
	deaf, err := net.ListenPacket("udp", net.JoinHostPort(podAddress, "9"))
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = deaf.Close() }) // nothing listens
	for range silent {
		conn, err := net.Dial("udp", net.JoinHostPort(podAddress, "9"))
		if err == nil {
			_, err = conn.Write([]byte("?"))
		}
		if err != nil {
			w.Fatal(err)
		}
		_ = conn.Close() // the flow stays
	}
	var conns []net.Conn
	start := time.Now()
	for failed := 0; failed < enough; {
		conn, err := dial(clusterIP, servicePort)
		if err == nil {
			failed = 0
			if conns = append(conns, conn); len(conns) > size {
				w.Fatalf("%d connections are open with a table for %d", len(conns), size)
			}
			continue
		}
		now, err := conntrack.NewSystem("").Statistics()
		switch {
		case err != nil:
			w.Fatal(err)
		case time.Since(start) > patience:
			w.Fatalf("the table does not fill: %+v", now)
		case now.Entries >= size && now.Drop > 0 && now.EarlyDrop > 0: // else the machine is slow
			failed++
		}
	}
	w.Logf("the table is full with %d connections, %d entries", len(conns)+held, w.read("count"))
	return conns
}

// whileFull shows that the agent reports it, and continues.
func (w *world) whileFull() Measured {
	w.Helper()
	var out Measured
	w.await("pressure", func(s *v1alpha1.NodeProxyRulesStatus) error {
		if !meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionConntrackPressure) || s.Conntrack.UsagePercent < 95 {
			return errors.New("no pressure is reported")
		}
		return nil
	})
	// Rules are written, and the status.
	w.setService(2)
	w.await("rules of a second port", func(*v1alpha1.NodeProxyRulesStatus) error {
		if rules := w.run("iptables-legacy -w -t nat -S KUBE-SERVICES"); !strings.Contains(rules, "--dport 81 ") {
			return errors.New("no such rule")
		}
		return nil
	})
	w.setSettings(&v1alpha1.ConntrackSettings{MaxPerCore: new(int32(1)), Min: new(int32(size)), UDPTimeoutSeconds: new(int32(33))})
	revision := w.api.own().Spec.SettingsRevision
	s := w.await("other settings, and counters", func(s *v1alpha1.NodeProxyRulesStatus) error {
		if s.SettingsRevision != revision || s.Conntrack.Drop == 0 || s.Conntrack.EarlyDrop == 0 {
			return fmt.Errorf("revision %s, want %s; conntrack %+v", s.SettingsRevision, revision, s.Conntrack)
		}
		return nil
	})
	w.expect("udp_timeout", 33)
	out.Drop, out.EarlyDrop = s.Conntrack.Drop, s.Conntrack.EarlyDrop
	reported := w.run("conntrack -S")
	if most := count(reported, "drop="); out.Drop > most {
		w.Errorf("%d dropped packets are reported, the kernel reports %d: %s", out.Drop, most, reported)
	}
	if most := count(reported, "early_drop="); out.EarlyDrop > most {
		w.Errorf("%d evicted connections are reported, the kernel reports %d: %s", out.EarlyDrop, most, reported)
	}
	for range tries {
		conn, err := dial(clusterIP, servicePort)
		switch {
		case err != nil:
			out.Rejected++
		default: // in place of a flow that was evicted
			w.Cleanup(func() { _ = conn.Close() })
		}
		if out.Rejected == enough {
			return out
		}
	}
	w.Errorf("of %d new connections only %d fail with a full table", tries, out.Rejected)
	return out
}

// count adds up a counter in the output of conntrack -S.
func count(output, name string) int64 {
	var sum int64
	for word := range strings.FieldsSeq(output) {
		if value, found := strings.CutPrefix(word, name); found {
			n, _ := strconv.ParseInt(value, 10, 64)
			sum += n
		}
	}
	return sum
}

// whileItEmpties ends connections, and shows that all is well then.
func (w *world) whileItEmpties(conns []net.Conn, out *Measured) {
	w.Helper()
	for _, conn := range conns {
		// Cut off, it is soon forgotten.
		if err := errors.Join(conn.(*net.TCPConn).SetLinger(0), conn.Close()); err != nil {
			w.Fatal(err)
		}
	}
	start := time.Now()
	for end := start.Add(patience); ; wait(pause) {
		conn, err := dial(clusterIP, "81")
		if err == nil {
			err = errors.Join(ask(conn), conn.Close())
		}
		if err == nil {
			break
		}
		if time.Now().After(end) {
			w.Fatalf("no new connection after the others have ended: %v", err)
		}
	}
	out.RepairSeconds = time.Since(start).Seconds()
	w.await("the end of the pressure", func(s *v1alpha1.NodeProxyRulesStatus) error {
		w.run("conntrack -L") // reading entries removes those that have ended
		if !meta.IsStatusConditionFalse(s.Conditions, v1alpha1.ConditionConntrackPressure) || s.Conntrack.UsagePercent > 70 {
			return fmt.Errorf("%d entries", w.read("count"))
		}
		return nil
	})
	out.ReportedSeconds = time.Since(start).Seconds()
}

// settingsOfTheMachine shows what cannot be written in a network namespace.
func (w *world) settingsOfTheMachine() {
	w.Helper()
	before := w.read("buckets")
	if before >= larger/4 {
		w.Fatalf("%d buckets are too many for this", before)
	}
	w.setSettings(&v1alpha1.ConntrackSettings{MaxPerCore: new(int32(larger)), Min: new(int32(0))})
	w.await("a larger table", func(s *v1alpha1.NodeProxyRulesStatus) error {
		if s.Conntrack.Max != larger || s.Conntrack.Buckets < larger/4 {
			return fmt.Errorf("conntrack %+v", s.Conntrack)
		}
		return nil
	})
	w.expect("max", larger)
	if got := w.read("buckets"); got < larger/4 || got > larger {
		w.Errorf("%d buckets", got)
	}
	if err := os.WriteFile(sysctl("max"), []byte("50000"), 0); err != nil {
		w.Fatal(err)
	}
	w.await("the size that another program has changed is put right", func(*v1alpha1.NodeProxyRulesStatus) error {
		if got := w.read("max"); got != larger {
			return fmt.Errorf("max is %d", got)
		}
		return nil
	})
	// As in a container that is not privileged.
	if err := errors.Join(unix.Mount("/proc/sys", "/proc/sys", "", unix.MS_BIND, ""),
		unix.Mount("", "/proc/sys", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")); err != nil {
		w.Fatal(err)
	}
	w.setSettings(&v1alpha1.ConntrackSettings{MaxPerCore: new(int32(larger)), Min: new(int32(0)), UDPTimeoutSeconds: new(int32(44)), TCPBeLiberal: new(v1alpha1.Enabled)})
	s := w.await("settings that cannot be written are a warning", func(s *v1alpha1.NodeProxyRulesStatus) error {
		c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionProgrammed)
		if c.Reason != v1alpha1.ReasonProgrammed || !strings.Contains(c.Message, "nf_conntrack_udp_timeout is 33, not 44") || !strings.Contains(c.Message, "/proc/sys is read-only for the agent") {
			return fmt.Errorf("condition %+v", c)
		}
		return nil
	})
	if !slices.Contains(s.Families, "IPv4") {
		w.Errorf("families %v", s.Families)
	}
}
