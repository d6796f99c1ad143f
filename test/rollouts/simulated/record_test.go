package simulated

import (
	"path/filepath"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/recorded"
)

// record writes the state of the cluster, if asked to.
func (w *world) record(name string) {
	w.t.Helper()
	if *recordTo == "" {
		return
	}
	if err := recorded.Record(w.t.Context(), w.plane.admin, filepath.Join(*recordTo, name), time.Now()); err != nil {
		w.t.Error(err)
	}
}
