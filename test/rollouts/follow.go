package rollouts

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// catchUp is how long the last versions may take to arrive.
const catchUp = 30 * time.Second

// Follower watches the NodeProxyRules of a cluster.
type Follower struct {
	client client.WithWatch
	watch  watch.Interface
	done   chan struct{}

	mu       sync.Mutex // guards the following
	story    Story
	versions map[string]string // the newest that have arrived, by name
	err      error
	arrived  chan struct{} // closed when something has, and made anew
}

// Follow begins with what is stored now. The caller has to end it.
func Follow(ctx context.Context, c *cluster.Cluster) (*Follower, error) {
	watching, err := client.NewWithWatch(c.RESTConfig(), client.Options{Scheme: c.Client().Scheme()})
	if err != nil {
		return nil, fmt.Errorf("following NodeProxyRules: %w", err)
	}
	list := &v1alpha1.NodeProxyRulesList{}
	if err := watching.List(ctx, list); err != nil {
		return nil, fmt.Errorf("following NodeProxyRules: %w", err)
	}
	f := &Follower{client: watching, done: make(chan struct{}), versions: map[string]string{}, arrived: make(chan struct{})}
	for i := range list.Items {
		f.see(watch.Event{Type: watch.Added, Object: &list.Items[i]})
	}
	f.watch, err = watching.Watch(ctx, &v1alpha1.NodeProxyRulesList{},
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion}})
	if err != nil {
		return nil, fmt.Errorf("following NodeProxyRules: %w", err)
	}
	go f.run()
	return f, nil
}

func (f *Follower) run() {
	defer close(f.done)
	for event := range f.watch.ResultChan() {
		f.see(event)
	}
}

// see takes what has arrived.
func (f *Follower) see(event watch.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rules, ok := event.Object.(*v1alpha1.NodeProxyRules)
	switch {
	case event.Type == watch.Error:
		f.err = fmt.Errorf("the watch has ended: %+v", event.Object)
	case !ok:
	case event.Type == watch.Deleted:
		f.story.remove(rules.Name)
		delete(f.versions, rules.Name)
	default:
		f.story.add(rules)
		f.versions[rules.Name] = rules.ResourceVersion
	}
	close(f.arrived)
	f.arrived = make(chan struct{})
}

// Story is what became of the nodes until now.
func (f *Follower) Story(ctx context.Context) (*Story, error) {
	ctx, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	for {
		list := &v1alpha1.NodeProxyRulesList{}
		if err := f.client.List(ctx, list); err != nil {
			return nil, fmt.Errorf("following NodeProxyRules: %w", err)
		}
		story, arrived, err := f.at(list)
		if story != nil || err != nil {
			return story, err
		}
		select {
		case <-arrived:
		case <-f.done:
			return nil, errors.New("following NodeProxyRules: the watch has ended")
		case <-ctx.Done():
			return nil, fmt.Errorf("following NodeProxyRules: the newest have not arrived: %w", ctx.Err())
		}
	}
}

// at is the story if it has come to where the listed rules are, else nil and what
// is closed when more has arrived.
func (f *Follower) at(list *v1alpha1.NodeProxyRulesList) (*Story, <-chan struct{}, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, nil, f.err
	}
	for i := range list.Items {
		if f.versions[list.Items[i].Name] != list.Items[i].ResourceVersion {
			return nil, f.arrived, nil
		}
	}
	story := f.story
	return &story, nil, nil
}

// Again forgets what has been: the next story begins now.
func (f *Follower) Again() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.story = Story{nodes: f.story.nodes}
}

// End ends the watch.
func (f *Follower) End() {
	f.watch.Stop()
	<-f.done
}
