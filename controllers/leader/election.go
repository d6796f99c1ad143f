package leader

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=get;create;update,namespace=nodeproxy-system

// A standby takes over at most 13 s after a leader was killed, 2 s after one was stopped. A leader
// that cannot renew gives up 3 s before another may take over, so that its writes have ended by
// then.
const (
	leaseDuration = 8 * time.Second
	renewDeadline = 5 * time.Second
	// retryPeriod is how often a leader renews. client-go makes the pauses of
	// standbys up to 2.2 times as long, which is 1.1 s on average.
	retryPeriod = 700 * time.Millisecond
	// stopGrace is how long a write may continue after the process is asked to stop.
	stopGrace = 500 * time.Millisecond
)

// Election takes part in the election of the leader.
type Election struct {
	gate *Gate
	lock *lock
}

// NewElection returns an election for the Lease of that name. The gate is open while this process
// holds it.
func NewElection(config *rest.Config, namespace, name string, gate *Gate, log logr.Logger) (*Election, error) {
	config = rest.AddUserAgent(rest.CopyConfig(config), "leader-election")
	config.Timeout = renewDeadline / 2 // one request that hangs must not cost the lease
	client, err := coordinationv1.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create the client of the election: %w", err)
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("read the host name: %w", err)
	}
	return &Election{gate: gate, lock: &lock{
		Interface: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: namespace, Name: name},
			Client:     client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())},
		},
		gate: gate, log: log.WithValues("lease", namespace+"/"+name),
	}}, nil
}

// Run takes part until ctx is done. Then it lets current work end and releases the lease, so that a
// standby need not wait.
func (e *Election) Run(ctx context.Context) error {
	// client-go would log every failed attempt; the lock logs changes.
	running, end := context.WithCancel(klog.NewContext(context.WithoutCancel(ctx), logr.Discard()))
	defer end()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		e.gate.stop(stopGrace)
		end()
	}()
	for running.Err() == nil {
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: e.lock, LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
			Name: "nodeproxy-controller",
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) {}, // the gate opens with each renewal
				OnStoppedLeading: e.gate.lose,
			},
		})
		if err != nil {
			return fmt.Errorf("set up the election: %w", err)
		}
		term, over := context.WithCancel(running)
		e.lock.over = over
		elector.Run(term)
		over()
		e.lock.lost(running)
	}
	<-stopped
	return e.release(ctx)
}

// release releases the lease if this process holds it.
func (e *Election) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), renewDeadline/2)
	defer cancel()
	record, _, err := e.lock.Interface.Get(ctx)
	if apierrors.IsNotFound(err) || err == nil && record.HolderIdentity != e.lock.Identity() {
		return nil
	}
	if err == nil {
		now := metav1.NewTime(e.gate.clock.Now())
		err = e.lock.Interface.Update(ctx, resourcelock.LeaderElectionRecord{
			LeaseDurationSeconds: 1, AcquireTime: now, RenewTime: now, LeaderTransitions: record.LeaderTransitions,
		})
	}
	if err != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("release the lease %s, another controller takes over in %s: %w", e.lock.Describe(), leaseDuration, err)
	}
	return nil
}

// lock is the Lease. It opens the gate when it is renewed, and logs each change once. Only the
// election uses it.
type lock struct {
	resourcelock.Interface
	gate *Gate
	log  logr.Logger

	over    func() // ends this election, so that the next one begins
	leading bool
	failing bool   // errors have been logged, and not their end
	leader  string // that was last logged
}

// Get implements resourcelock.Interface.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	if apierrors.IsNotFound(err) {
		return record, raw, err
	}
	l.note(ctx, err)
	if err == nil && record.HolderIdentity != l.Identity() && record.HolderIdentity != "" {
		l.takenBy(record.HolderIdentity)
	}
	return record, raw, err
}

// takenBy notes that another controller holds the lease. It may have taken it before our renewals
// ended, for example after the Lease was deleted.
func (l *lock) takenBy(leader string) {
	l.gate.lose()
	if leader == l.leader {
		return
	}
	l.leader = leader
	if l.leading {
		l.log.Info("Lost the lease to another controller; standing by", "leader", leader)
		l.over() // client-go would try to renew for a while
	} else {
		l.log.Info("Another controller leads; standing by", "leader", leader)
	}
	l.leading = false
}

// Create implements resourcelock.Interface.
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	start := l.gate.clock.Now()
	return l.renewed(ctx, start, l.Interface.Create(ctx, record))
}

// Update implements resourcelock.Interface.
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	start := l.gate.clock.Now()
	return l.renewed(ctx, start, l.Interface.Update(ctx, record))
}

// renewed notes the result of a renewal. The time when it was sent counts.
func (l *lock) renewed(ctx context.Context, start time.Time, err error) error {
	if err == nil {
		l.gate.extend(start.Add(renewDeadline))
		if !l.leading {
			l.leading, l.leader = true, l.Identity()
			l.log.Info("Became the leader", "identity", l.leader)
		}
	}
	if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) { // another controller was faster
		l.note(ctx, err)
	}
	return err
}

// note logs when errors of the lease begin and end.
func (l *lock) note(ctx context.Context, err error) {
	switch {
	case err != nil && ctx.Err() == nil && !l.failing:
		l.failing = true
		l.log.Error(err, "Could not read or write the lease; retrying", "effect", "a leader that cannot renew it stops writing", "after", renewDeadline.String())
	case err == nil && l.failing:
		l.failing = false
		l.log.Info("The lease can be read and written again")
	}
}

// lost notes that an election has ended.
func (l *lock) lost(ctx context.Context) {
	if l.leading && ctx.Err() == nil {
		l.log.Info("Lost the lease; standing by", "notRenewedFor", renewDeadline.String())
	}
	l.leading = false
}
