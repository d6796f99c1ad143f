package shards

import (
	"strings"
	"testing"

	"github.com/onsi/ginkgo/v2/types"
)

func TestAddUp(t *testing.T) {
	spec := func(name string, state types.SpecState, message string) types.SpecReport {
		r := types.SpecReport{LeafNodeType: types.NodeTypeIt, LeafNodeText: name, State: state}
		r.Failure.Message = message
		return r
	}
	passed := func(name string) types.SpecReport { return spec(name, types.SpecStatePassed, "") }
	skipped := func(name string) types.SpecReport { return spec(name, types.SpecStateSkipped, claimedByAnother) }
	for name, c := range map[string]struct {
		shards [][]types.SpecReport
		some   bool
		want   string
	}{
		"each in one":        {shards: [][]types.SpecReport{{passed("a"), skipped("b")}, {skipped("a"), passed("b")}}},
		"in none":            {shards: [][]types.SpecReport{{passed("a"), skipped("b")}, {skipped("a"), skipped("b")}}, want: "ran in 0 shards"},
		"in two":             {shards: [][]types.SpecReport{{passed("a")}, {passed("a")}}, want: "ran in 2 shards"},
		"skips itself":       {shards: [][]types.SpecReport{{spec("a", types.SpecStateSkipped, "no such kernel")}, {passed("a")}}, want: "no such kernel"},
		"pending":            {shards: [][]types.SpecReport{{spec("a", types.SpecStatePending, "")}, {passed("a")}}, want: "pending"},
		"left out by a flag": {shards: [][]types.SpecReport{{spec("a", types.SpecStateSkipped, "")}, {passed("b")}}, some: true},
		"left out":           {shards: [][]types.SpecReport{{spec("a", types.SpecStateSkipped, "")}, {passed("b")}}, want: "a / :0: skipped"},
		"nothing":            {shards: [][]types.SpecReport{{}}, want: "no spec ran"},
	} {
		var reports []types.Report
		for _, s := range c.shards {
			reports = append(reports, types.Report{SpecReports: s})
		}
		_, err := addUp(reports, c.some)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
