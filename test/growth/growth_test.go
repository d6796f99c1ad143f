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
	if few, many := compare(1000, 10_000, func(n int) {
		for i := range n {
			for j := range n {
				sum += i ^ j
			}
		}
	}); many <= most*few {
		t.Errorf("a loop within a loop takes %v, ten times as many rounds of both %v (%d)", few, many, sum)
	}
}
