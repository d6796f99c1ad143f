package cluster

import (
	"testing"
	"time"
)

func TestParseUsage(t *testing.T) {
	stat := "42 (a ) name) S 1 42 42 0 -1 4194560 100 200 3 4 150 50 25 75 20 0 11 0 100 1 1"
	status := "Name:\ta\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n"
	got, err := parseUsage(stat, status)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Usage{CPU: 3 * time.Second, Resident: 1 << 20, Peak: 2 << 20}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for _, broken := range []string{"", "42 (a) S 1 2"} {
		if _, err := parseUsage(broken, status); err == nil {
			t.Errorf("no error for %q", broken)
		}
	}
	if _, err := parseUsage(stat, "Name:\ta\n"); err == nil {
		t.Error("no error without VmRSS")
	}
}
