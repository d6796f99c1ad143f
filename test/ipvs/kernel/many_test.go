package kernel

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// sideBySide uses the kernels of both families at once, as an agent does: one
// makes and deletes virtual servers while the other one reads its own.
func sideBySide(t *testing.T) {
	labs := []*lab{newLab(t, dataplane.IPv4), newLab(t, dataplane.IPv6)}
	want := map[ipvs.Key]ipvs.Server{}
	for i := range 500 { // so that the list comes in parts
		k := labs[1].key(1, uint16(i+1), v1alpha1.ProtocolTCP)
		want[k] = ipvs.Server{Scheduler: "rr"}
		check(t, labs[1].AddServer(k, want[k]))
	}
	stop := make(chan struct{})
	var others sync.WaitGroup
	others.Go(func() {
		l := labs[0]
		for i := 0; ; i = (i + 1) % 1000 {
			select {
			case <-stop:
				return
			default:
			}
			k := l.key(1, uint16(i+1), v1alpha1.ProtocolTCP)
			if err := l.AddServer(k, ipvs.Server{Scheduler: "rr"}); err != nil {
				t.Error(err)
				return
			}
			if err := l.DeleteServer(k); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 20 {
		labs[1].expectServers(t, want)
		if _, err := labs[0].Addresses(); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	others.Wait()
	labs[1].clear(t, want)
}

// measurements are what a thousand virtual servers of ten real servers each cost.
type measurements struct {
	// To make the virtual servers, the real ones, to bind an address for each
	// virtual one, and to make an ipset with as many entries.
	ServersSeconds, RealsSeconds, BindSeconds, SetSeconds float64
	// To read all that, and to change one real server.
	ReadSeconds, ChangeMilliseconds float64
	// ResidentMB is what the process needs afterwards, AllocatedMB what it has
	// allocated for the writing.
	ResidentMB, AllocatedMB float64
}

func many(t *testing.T) {
	l := newLab(t, dataplane.IPv4)
	const services, endpoints = 1000, 10
	set := ipvs.SetChange{Name: "KUBE-CLUSTER-IP", Type: ipvs.HashIPPort, Create: true}
	var f measurements
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	check(t, l.CreateDevice())
	start := time.Now()
	key := func(i int) ipvs.Key {
		return ipvs.Key{Addr: netip.AddrFrom4([4]byte{10, 96, byte(i / 250), byte(1 + i%250)}), Port: 80, Protocol: v1alpha1.ProtocolTCP}
	}
	real := func(i, j int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i / 25), byte(1 + i%25*10 + j)}), 8080)
	}
	for i := range services {
		check(t, l.AddServer(key(i), ipvs.Server{Scheduler: "rr"}))
		set.Add = append(set.Add, ipvs.Entry(fmt.Sprintf("%s,tcp:80", key(i).Addr)))
	}
	f.ServersSeconds = time.Since(start).Seconds()
	start = time.Now()
	for i := range services {
		for j := range endpoints {
			check(t, l.AddReal(key(i), real(i, j), 1))
		}
	}
	f.RealsSeconds = time.Since(start).Seconds()
	start = time.Now()
	for i := range services {
		check(t, l.Bind(key(i).Addr))
	}
	f.BindSeconds = time.Since(start).Seconds()
	start = time.Now()
	check(t, l.ChangeSets([]ipvs.SetChange{set}))
	f.SetSeconds = time.Since(start).Seconds()
	runtime.ReadMemStats(&after)
	f.AllocatedMB = float64(after.TotalAlloc-before.TotalAlloc) / 1e6

	start = time.Now()
	servers, err := l.Servers()
	check(t, err)
	reals := 0
	for k := range servers {
		list, err := l.Reals(k)
		check(t, err)
		reals += len(list)
	}
	bound, _, err := l.Bound()
	check(t, err)
	_, err = l.Sets([]ipvs.SetName{set.Name})
	check(t, err)
	f.ReadSeconds = time.Since(start).Seconds()
	if len(servers) != services || reals != services*endpoints || len(bound) != services {
		t.Errorf("%d virtual servers, %d real servers, %d addresses", len(servers), reals, len(bound))
	}
	start = time.Now()
	check(t, l.DeleteReal(key(7), real(7, 0)), l.AddReal(key(7), real(7, 0), 1))
	f.ChangeMilliseconds = time.Since(start).Seconds() * 1000
	f.ResidentMB = resident(t)
	for k := range servers {
		check(t, l.DeleteServer(k))
	}
	check(t, l.DeleteDevice(), l.DeleteSets([]ipvs.SetName{set.Name}))
	report(t, f)
}

// resident is the process's resident memory, in MB.
func resident(t *testing.T) float64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	check(t, err)
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	check(t, err)
	return float64(pages) * float64(os.Getpagesize()) / 1e6
}
