package dataplane

import "testing"

func TestOnce(t *testing.T) {
	var o Once[int]
	for range 3 {
		for i := range 3 * fewest {
			o.First(i)
			if o.First(i) {
				t.Errorf("%d comes first twice", i)
			}
		}
	}
	if !o.First(-1) {
		t.Error("-1 has not come before")
	}
}
