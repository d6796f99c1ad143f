package uml

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestOwnProcessor: two kernels never share a processor, and one that ends gives its
// own back.
func TestOwnProcessor(t *testing.T) {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		t.Fatal(err)
	}
	taken := unix.CPUSet{}
	var given []func()
	free := func() {
		for _, release := range given {
			release()
		}
		given = nil
	}
	defer free()
	all := func() int {
		for n := 0; ; n++ {
			processor, release, err := ownProcessor()
			if err != nil {
				t.Fatal(err)
			}
			given = append(given, release)
			if processor == nil {
				return n
			}
			for i := range 1024 {
				if processor.IsSet(i) {
					if processor.Count() != 1 || taken.IsSet(i) || !allowed.IsSet(i) {
						t.Fatalf("processor %d of %d", i, processor.Count())
					}
					taken.Set(i)
				}
			}
		}
	}
	first := all() // other kernels may run beside this test
	if first > allowed.Count() {
		t.Errorf("%d processors for %d", first, allowed.Count())
	}
	free()
	taken.Zero()
	if again := all(); again == 0 && first > 0 {
		t.Error("none is given back")
	}
}
