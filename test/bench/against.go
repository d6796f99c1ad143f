package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
)

// worse is how many times an earlier ratio a ratio may be. What both proxies take
// varies from run to run, by half for some rows.
const worse = 2

// readRatios reads the ratios of an earlier run: a file that bench has written, or a
// part of one, and goals beside them. Rows that the file leaves out are not compared.
func readRatios(path string) (*report, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	earlier := &report{}
	if err := json.Unmarshal(text, earlier); err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	for i := range earlier.Results {
		if len(earlier.Results[i].Ratios) == 0 {
			return nil, fmt.Errorf("reading %s: %s has no ratios", path, &earlier.Results[i])
		}
	}
	return earlier, nil
}

// against returns an error for each ratio that is clearly worse than an earlier one, and
// for each of what the options ask for that was not measured again.
func (r *report) against(o options) error {
	var failed []error
	compared := 0
	for i := range o.earlier.Results {
		earlier := &o.earlier.Results[i]
		if !o.measures(earlier) {
			continue
		}
		var now map[string]float64
		if found := slices.IndexFunc(r.Results, earlier.comparable); found >= 0 {
			now = r.Results[found].Ratios
		}
		for _, name := range slices.Sorted(maps.Keys(earlier.Ratios)) {
			compared++
			before := earlier.Ratios[name]
			switch ratio, measured := now[name]; {
			case !measured:
				failed = append(failed, fmt.Errorf("%s: %s: no ratio was measured", earlier, name))
			case timesAsBad(name, ratio, before) > worse:
				failed = append(failed, fmt.Errorf("%s: %s: the ratio is %.4f, more than %d times as bad as the earlier %.4f", earlier, name, ratio, worse, before))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(earlier.Goals)) {
			if goal, ratio := earlier.Goals[name], now[name]; ratio == 0 || timesAsBad(name, ratio, goal) > 1 {
				failed = append(failed, fmt.Errorf("%s: %s: the ratio is %.4f, the goal is %.4f", earlier, name, ratio, goal))
			}
		}
	}
	if compared == 0 {
		return errors.New("no earlier ratio is of what was measured")
	}
	return errors.Join(failed...)
}

// timesAsBad compares two ratios of a row.
func timesAsBad(row string, ratio, other float64) float64 {
	switch row {
	case connectionsRow, oneStreamRow, allStreamsRow:
		return other / ratio
	}
	return ratio / other
}

// measures reports whether these options ask for the situation of a result.
func (o *options) measures(r *result) bool {
	return o.mode == r.Mode && slices.Contains(o.sizes, size{r.Services, r.Endpoints}) && slices.Contains(o.variants, variant(r.Variant))
}

// comparable reports whether another result is of the same situation.
func (r *result) comparable(other result) bool {
	return r.Services == other.Services && r.Endpoints == other.Endpoints && r.Mode == other.Mode && r.Variant == other.Variant
}

func (r *result) String() string {
	return fmt.Sprintf("%d Services x %d endpoints, %s, iptables %s", r.Services, r.Endpoints, r.Mode, r.Variant)
}
