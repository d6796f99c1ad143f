package controllers_test

import (
	"maps"
	"sync"

	"github.com/go-logr/logr"
	. "github.com/onsi/ginkgo/v2"
	"k8s.io/klog/v2/textlogger"
)

// reconcileCounts counts the reconciles that have begun. No metric names their
// requests, so it reads what controller-runtime logs of each.
type reconcileCounts struct {
	mu     sync.Mutex
	counts map[string]int // by "controller namespace/name"
	works  map[string]bool
}

func (c *reconcileCounts) working() map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.works)
}

func (c *reconcileCounts) begun() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.counts)
}

// logger logs as the suite does, and counts.
func (c *reconcileCounts) logger() logr.Logger {
	config := textlogger.NewConfig(textlogger.Verbosity(2), textlogger.Output(GinkgoWriter))
	return logr.New(&reconcileLog{LogSink: textlogger.NewLogger(config).GetSink(), counts: c})
}

// reconcileLog is a sink that knows which reconcile it logs for.
type reconcileLog struct {
	logr.LogSink
	counts                      *reconcileCounts
	controller, namespace, name string
}

// Enabled lets the messages through that are counted.
func (l *reconcileLog) Enabled(level int) bool { return level <= 5 || l.LogSink.Enabled(level) }

// Info counts a reconcile that begins, and notes that a controller has started.
func (l *reconcileLog) Info(level int, message string, values ...any) {
	l.counts.mu.Lock()
	switch message {
	case "Reconciling":
		l.counts.counts[l.controller+" "+l.namespace+"/"+l.name]++
	case "Starting workers":
		l.counts.works[l.controller] = true
	}
	l.counts.mu.Unlock()
	if l.LogSink.Enabled(level) {
		l.LogSink.Info(level, message, values...)
	}
}

// WithValues notes what is reported of the reconcile.
func (l *reconcileLog) WithValues(values ...any) logr.LogSink {
	next := *l
	next.LogSink = l.LogSink.WithValues(values...)
	for i := 0; i+1 < len(values); i += 2 {
		text, _ := values[i+1].(string)
		switch values[i] {
		case "controller":
			next.controller = text
		case "namespace":
			next.namespace = text
		case "name":
			next.name = text
		}
	}
	return &next
}

// WithName implements logr.LogSink.
func (l *reconcileLog) WithName(name string) logr.LogSink {
	next := *l
	next.LogSink = l.LogSink.WithName(name)
	return &next
}
