package faults

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// row is how one fault went.
type row struct {
	number   int
	title    string
	lasted   time.Duration
	tried    int // new connections
	held     int
	failed   int // new and held ones
	allowed  string
	repaired time.Duration // after the end of the fault; 0: not at all
	ok       bool
	remarks  []string
}

func (r row) String() string {
	repaired := "not repaired"
	if r.repaired > 0 {
		repaired = seconds(r.repaired)
	}
	remarks := strings.Join(r.remarks, "; ")
	if !r.ok {
		remarks = strings.TrimSuffix("FAILED, see above; "+remarks, "; ")
	}
	return fmt.Sprintf("| %s | %s | %d | %d | %d | %s | %s | %s |", r.title, seconds(r.lasted), r.tried, r.held, r.failed, r.allowed, repaired, remarks)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// table prints rows as they come, and all of them at the end. Its lines begin
// with "|", by which hack/test.sh finds them in the output.
type table struct {
	seed  uint64
	begun time.Time

	mu   sync.Mutex // guards rows
	rows []row
}

// order is how rows are documented.
func order() []string {
	return []string{
		"agent-killed", "api-server-down", "etcd-restarted", "controller-killed", "agent-restarted", "reboot",
		"rules-flushed", "lock-held", "state-directory-full", "cut-off", "endpoint-changes", "rules-objects-deleted",
		"crds-deleted", "nodeproxy-deleted", "node-deleted", "permissions-revoked",
		fullTable, "clock-jumped",
		"nftables-agent-killed", "nftables-api-server-down", "nftables-etcd-restarted", "nftables-agent-restarted", "nftables-reboot",
		"nftables-rules-flushed", "nftables-state-directory-full",
		"userspace-endpoint-fails", "userspace-agent-killed",
	}
}

// TestOrder: each fault has its place in the table.
func TestOrder(t *testing.T) {
	known := []string{fullTable}
	for _, g := range groups() {
		for _, f := range g.faults {
			known = append(known, f.name)
		}
	}
	slices.Sort(known)
	if placed := slices.Sorted(slices.Values(order())); !slices.Equal(placed, known) {
		t.Errorf("faults %v\nhave places %v", known, placed)
	}
}

func (*table) number(name string) int { return slices.Index(order(), name) }

const head = `| fault | lasted | tried | held | failed | allowed | full repair | remarks |
| --- | --- | --- | --- | --- | --- | --- | --- |`

func newTable(seed uint64) *table {
	fmt.Printf("| %s=%d repeats what is random; the rows as they come:\n%s\n", seedVariable, seed, head)
	return &table{seed: seed, begun: time.Now()}
}

func (t *table) add(r row) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows = append(t.rows, r)
	fmt.Println(r)
}

// print prints all rows in the order in which they are documented.
func (t *table) print() {
	t.mu.Lock()
	defer t.mu.Unlock()
	slices.SortStableFunc(t.rows, func(a, b row) int { return cmp.Compare(a.number, b.number) })
	tried, failed := 0, 0
	fmt.Printf("| all rows, %s=%d:\n%s\n", seedVariable, t.seed, head)
	for _, r := range t.rows {
		fmt.Println(r)
		tried, failed = tried+r.tried, failed+r.failed
	}
	fmt.Printf("| in all: %d faults in %s, %d connections tried, %d failed\n", len(t.rows), seconds(time.Since(t.begun)), tried, failed)
}
