package growth

import "testing"

func TestCompare(t *testing.T) {
	sum := 0
	if few, many := compare(1000, 10_000, func(n int) {
		for i := range n {
			sum += i
		}
	}); many > most*few {
		t.Errorf("a loop takes %v, ten times as many rounds %v", few, many)
	}
	for round := range rounds { // a machine that was slow for the small one hides it
		few, many := compare(1000, 10_000, func(n int) {
			for i := range n {
				for j := range n {
					sum += i ^ j
				}
			}
		})
		if many > most*few {
			break
		}
		if round == rounds-1 {
			t.Errorf("a loop within a loop takes %v, ten times as many rounds of both %v (%d)", few, many, sum)
		}
	}
}

// TestAllowed: what may be large together is, up to the limits.
func TestAllowed(t *testing.T) {
	for size, want := range map[Size]bool{{1, 100, 900}: true, {10, 10, 900}: true, {100, 100, 9}: true, {100, 1, 900}: false, {10, 100, 900}: false} {
		if got := size.allowed(); got != want {
			t.Errorf("%+v is allowed: %t", size, got)
		}
	}
}
