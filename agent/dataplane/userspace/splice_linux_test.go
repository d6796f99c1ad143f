package userspace

import "testing"

// TestLargePipesAreFew: what clients that do not read can fill has a bound, and room returns when they go.
func TestLargePipesAreFew(t *testing.T) {
	w := &worker{}
	var pipes []*pipe
	take := func() *pipe {
		p, err := w.pipe()
		if err != nil {
			t.Fatal(err)
		}
		pipes = append(pipes, p)
		return p
	}
	t.Cleanup(func() {
		for _, p := range pipes {
			p.close()
		}
	})
	for i := range maxLargePipes {
		if !take().large {
			t.Fatalf("pipe %d is not large", i)
		}
	}
	if take().large {
		t.Errorf("more than %d pipes are large", maxLargePipes)
	}
	first := pipes[0]
	pipes = pipes[1:]
	first.has = 1
	w.giveBack(first) // closes it
	if !take().large {
		t.Error("there is no room after one was closed")
	}
}
