package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func TestCheckTable(t *testing.T) {
	const table = "NAME     MODE   PROGRAMMED   SERVICES\n" +
		"node-1   IPVS   True         0\n" +
		"node-2          True         0\n"
	for name, tc := range map[string]struct {
		text, column string
		rows         int
		want         string
	}{
		"all true":          {table, "PROGRAMMED", 2, ""},
		"an empty cell":     {table, "MODE", 2, "MODE is not True"},
		"a row too few":     {table, "PROGRAMMED", 3, "2 rows, want 3"},
		"one false":         {strings.Replace(table, "True", "False", 1), "PROGRAMMED", 2, "not True in: node-1"},
		"no such column":    {table, "READY", 2, "no column READY"},
		"any value will do": {table, "", 2, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkTable(tc.text, tc.rows, tc.column)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("checkTable = %v, want %q", err, tc.want)
			}
		})
	}
}

func TestSameRules(t *testing.T) {
	const svc, other = "*nat -A KUBE-SVC-A -j KUBE-SEP-A", "*nat -A KUBE-SERVICES -j KUBE-SVC-A"
	before := map[string]int{svc: 5, other: 7}
	for name, tc := range map[string]struct {
		before, after map[string]int
		want          string
	}{
		"counters grew":       {before, map[string]int{svc: 6, other: 7}, ""},
		"one was rewritten":   {before, map[string]int{svc: 0, other: 7}, "written again"},
		"one is gone":         {before, map[string]int{other: 7}, "is gone"},
		"one is new":          {before, map[string]int{svc: 5, other: 7, "x": 0}, "is new"},
		"nothing was counted": {map[string]int{svc: 0, other: 7}, map[string]int{svc: 0, other: 7}, "proves nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			err := sameRules(tc.before, tc.after, true)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("sameRules = %v, want %q", err, tc.want)
			}
		})
	}
}

func TestReportCounts(t *testing.T) {
	var out bytes.Buffer
	r := newReport(&out, func() bool { return false })
	r.check("one", func() (string, error) { return "seen", nil })
	r.check("two", func() (string, error) { return "", errors.New("first line\nsecond line") })
	if err := r.need("three", func() (string, error) { return "", errors.New("no") }); !errors.Is(err, errStopped) {
		t.Errorf("need = %v, want errStopped", err)
	}
	if r.passed != 1 || r.failed != 2 {
		t.Errorf("%d passed, %d failed, want 1 and 2", r.passed, r.failed)
	}
	for _, want := range []string{"OK", "seen", "FAIL", "first line", "second line"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, out.String())
		}
	}
}
