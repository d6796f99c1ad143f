package agent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// TestProblemLog: whatever changes in how many Services, the log stays short and counts the rest.
func TestProblemLog(t *testing.T) {
	var lines []string
	clk := clocktesting.NewFakePassiveClock(time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC))
	p := &problemLog{log: funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{}), clock: clk}
	for i, c := range []struct {
		after    time.Duration
		services []int
		times    int
		want     []string // parts of the lines
	}{
		{services: []int{1}, times: 100, want: []string{`"service"="shop/s1" "problem"="time 0" "omittedLines"=0`}},
		{after: problemPause - 1, services: []int{1}, times: 2},
		{after: 1, services: []int{1}, times: 2, want: []string{`"problem"="time 0" "omittedLines"=101`}},
		{after: problemsPeriod, services: []int{2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}, times: 1, want: []string{
			"/s2", "/s3", "/s4", "/s5", "/s6", "/s7", "/s8", "/s9", "/s10", "/s11",
		}},
		{after: problemsPeriod, services: []int{12}, times: 1, want: []string{`"service"="shop/s12" "problem"="time 0" "omittedLines"=2`}},
		{after: problemPause, services: []int{2}, times: 1, want: []string{`"omittedLines"=0`}},
	} {
		clk.SetTime(clk.Now().Add(c.after))
		lines = nil
		for time := range c.times {
			for _, n := range c.services {
				p.report(dataplane.ServiceName{Namespace: "shop", Name: fmt.Sprintf("s%d", n)}, fmt.Sprintf("time %d", time))
			}
		}
		if len(lines) != len(c.want) {
			t.Errorf("step %d: %d lines, want %d: %q", i, len(lines), len(c.want), lines)
			continue
		}
		for j, want := range c.want {
			if !strings.Contains(lines[j], want) {
				t.Errorf("step %d: %q lacks %q", i, lines[j], want)
			}
		}
	}
	if len(p.lines) != 1 {
		t.Errorf("%d lines are remembered", len(p.lines))
	}
}
