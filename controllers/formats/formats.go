package formats

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
	"github.com/nodeproxy-io/nodeproxy/controllers/watches"
)

// Formats knows the version in which rendered objects are written. It is cached because checking
// every node for every Service would cost too much.
type Formats struct {
	client   client.Reader // reads come from the cache
	writable []int32
	reading  chan struct{} // contains one while the nodes are read

	// mu is not locked while the nodes are read, which waits for the cache: no write of a new term
	// begins before Forget returns.
	mu      sync.Mutex
	version int32  // guarded by mu; 0: not known
	term    int    // guarded by mu; counts calls of Forget
	logged  string // guarded by mu; the nodes that were last logged as behind
}

// New returns Formats that negotiate among the versions that can be written.
func New(c client.Reader, writable []int32) *Formats {
	return &Formats{client: c, writable: writable, reading: make(chan struct{}, 1)}
}

// Current returns the version to write.
func (f *Formats) Current(ctx context.Context) (int32, error) {
	if version, _ := f.known(); version != 0 {
		return version, nil
	}
	if err := f.await(ctx); err != nil {
		return 0, err
	}
	defer func() { <-f.reading }()
	if version, _ := f.known(); version != 0 { // another caller has read the nodes meanwhile
		return version, nil
	}
	version, _, err := f.read(ctx)
	return version, err
}

// await waits until no other caller reads the nodes, so that the latest result counts. After it,
// receive from reading.
func (f *Formats) await(ctx context.Context) error {
	select {
	case f.reading <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the versions that the nodes know: %w", ctx.Err())
	}
}

func (f *Formats) known() (version int32, term int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.version, f.term
}

// read returns the version that follows from what the nodes report, and stores it unless another
// term has begun meanwhile.
func (f *Formats) read(ctx context.Context) (version int32, changed bool, err error) {
	_, term := f.known()
	var rules v1alpha1.NodeProxyRulesList
	if err := f.client.List(ctx, &rules); err != nil {
		return 0, false, fmt.Errorf("list NodeProxyRules: %w", err)
	}
	version, behind := render.FormatVersion(f.writable, rules.Items)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.term != term {
		return version, false, nil
	}
	f.logVersion(ctx, version, behind)
	changed = f.version != 0 && f.version != version
	f.version = version
	return version, changed, nil
}

// logVersion logs once for each set of nodes that they require an older version, and each change of
// the version. The caller holds mu.
func (f *Formats) logVersion(ctx context.Context, version int32, behind []string) {
	const named = 3
	text := text.Some(behind, named)
	if text != "" && (text != f.logged || version != f.version) {
		log.FromContext(ctx).Info("Writing rendered objects in an older format, because not all agents know the newest one",
			"formatVersion", version, "newest", slices.Max(f.writable), "nodes", text, "whatToDo", "upgrade the agents there; of Nodes that do not come back, delete the Node")
	} else if f.version != 0 && version != f.version {
		log.FromContext(ctx).Info("Writing rendered objects in another format", "formatVersion", version, "before", f.version)
	}
	f.logged = text
}

// Forget makes the next negotiation count, because another controller may have led.
func (f *Formats) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version = 0
	f.term++
}

// Reconciler negotiates again when agents report other versions, and has everything rendered again
// when the version to write changes.
type Reconciler struct {
	Formats *Formats
	Changed func() // has everything rendered again
}

// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxyrules,verbs=list;watch

// Setup adds the reconciler to a manager.
func (r *Reconciler) Setup(s watches.Setup) error {
	return s.Add("format", r, watches.On(&v1alpha1.NodeProxyRules{}, watches.Changed(func(rules *v1alpha1.NodeProxyRules) []any {
		agent := rules.Status.Agent
		return []any{agent == nil, cmp.Or(agent, &v1alpha1.AgentReport{}).FormatVersions}
	})))
}

// Reconcile negotiates.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	if err := r.Formats.await(ctx); err != nil {
		return ctrl.Result{}, err
	}
	defer func() { <-r.Formats.reading }()
	_, changed, err := r.Formats.read(ctx)
	if err == nil && changed {
		r.Changed()
	}
	return ctrl.Result{}, err
}
