package ipvs_test

import (
	"fmt"
	"testing"
)

// BenchmarkFullPass reads, compares and writes 1,000 Services with ten endpoints
// each: over an empty kernel, and over one that has them.
func BenchmarkFullPass(b *testing.B) {
	for _, held := range []bool{false, true} {
		b.Run(fmt.Sprintf("held=%t", held), func(b *testing.B) {
			f := newBench(b)
			f.set(many(1000)...)
			f.apply()
			b.ReportAllocs()
			for b.Loop() {
				if !held {
					b.StopTimer()
					next := newBench(b)
					next.r = f.r
					f = next
					b.StartTimer()
				}
				f.r.Full = true
				f.apply()
			}
		})
	}
}

// BenchmarkOneEndpoint changes one endpoint of 1,000 Services with ten each.
func BenchmarkOneEndpoint(b *testing.B) {
	f := newBench(b)
	services := many(1000)
	f.set(services...)
	f.apply()
	more := *services[0]
	list := []string{"10.180.0.99:80"}
	for _, e := range more.Ports[0].Cluster {
		list = append(list, e.String())
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%2 == 0 {
			f.set(with(services[0], list...))
		} else {
			f.set(services[0])
		}
		f.apply()
	}
}

// BenchmarkVerify compares 1,000 Services with ten endpoints each.
func BenchmarkVerify(b *testing.B) {
	f := newBench(b)
	f.set(many(1000)...)
	f.apply()
	b.ReportAllocs()
	for b.Loop() {
		f.verified()
		f.kernel.Reset()
	}
}
