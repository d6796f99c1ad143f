package modes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

const (
	// cleanupPause is the time between cleanups of another mode.
	cleanupPause = 10 * time.Second
	// rejectedStay is how long a mode is retained because the running one rejects Services: as
	// long as it may stay for connections.
	rejectedStay = 15 * time.Minute
)

// cleanupOthers cleans up the modes that do not run, as far as allowed, and reports the rest in result.
// After an error the mode of r has no effect yet.
func (d *Dataplane) cleanupOthers(ctx context.Context, running *Plane, r *dataplane.Ruleset, result *dataplane.Result) error {
	if !r.Prune { // the next Apply with Prune is full
		return nil
	}
	var pending []string
	again := false
	for i := range d.planes {
		plane := &d.planes[i]
		if _, due := d.due[plane.Mode]; !due {
			continue
		}
		if running.Precedes(&plane.Declaration) && d.staysForRejected(plane, result) {
			pending = append(pending, fmt.Sprintf("cleanup of mode %s is pending for at most %s, because mode %s rejects Services", plane.Mode, rejectedStay, r.Mode))
			continue
		}
		why, err := plane.CleanupMode(ctx, r)
		switch {
		case errors.Is(err, dataplane.ErrUnsupported) && !d.Uses(plane.Mode):
			delete(d.due, plane.Mode) // we have nothing of it, and cannot read more without its programs
		case err != nil && plane.Precedes(&running.Declaration):
			return fmt.Errorf("clean up mode %s, which has precedence: %w", plane.Mode, err)
		case err != nil:
			again = true
			if len(result.Warnings) < dataplane.MaxExamples {
				result.Warnings = append(result.Warnings, fmt.Sprintf("cleanup of mode %s failed: %v; retrying every %s", plane.Mode, err, cleanupPause))
			}
		case why != "":
			again = true
			pending = append(pending, fmt.Sprintf("cleanup of mode %s is pending: %s", plane.Mode, why))
		default:
			delete(d.due, plane.Mode)
			d.use(plane.Mode, false)
		}
	}
	result.CleanupPending = strings.Join(pending, "; ")
	if again {
		d.again.Up()
	}
	return nil
}

// staysForRejected reports whether a mode stays for Services that the running one rejects, which
// it does not after a restart: see Dataplane.
func (d *Dataplane) staysForRejected(plane *Plane, result *dataplane.Result) bool {
	if !d.Uses(plane.Mode) || len(result.Rejected) == 0 {
		delete(d.rejectedSince, plane.Mode)
		return false
	}
	now := d.Clock.Now()
	if _, stays := d.rejectedSince[plane.Mode]; !stays {
		d.rejectedSince[plane.Mode] = now
	}
	return now.Sub(d.rejectedSince[plane.Mode]) < rejectedStay
}

// Relinquish implements dataplane.Dataplane, for all modes.
func (d *Dataplane) Relinquish(ctx context.Context, serves bool) (remain string, err error) {
	var all []string
	var errs []error
	for i := range d.planes {
		plane := &d.planes[i]
		if !plane.PrecedesOthers {
			continue
		}
		what, err := plane.Relinquish(ctx, serves)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("mode %s: %w", plane.Mode, err))
		case what == "":
			d.use(plane.Mode, false)
		}
		if what != "" {
			all = append(all, what)
		}
	}
	return strings.Join(all, ", "), errors.Join(errs...)
}

// Cleanup implements dataplane.Dataplane, for all modes. A mode of which the node can have nothing
// returns no error. The error wraps dataplane.ErrUnsupported only if the node lacks what the
// baseline mode needs and nothing else has failed.
func (d *Dataplane) Cleanup(ctx context.Context, o dataplane.CleanupOptions) error {
	d.applied, d.found = "", ""
	clear(d.due)
	d.follow("")
	var errs []error
	var unsupported error
	for i := range d.planes {
		plane := &d.planes[i]
		err := plane.Cleanup(ctx, o)
		switch {
		case err == nil:
			d.use(plane.Mode, false)
		case plane.Baseline && errors.Is(err, dataplane.ErrUnsupported):
			unsupported = err
		default:
			errs = append(errs, fmt.Errorf("mode %s: %w", plane.Mode, err))
		}
	}
	failed := errors.Join(errs...)
	switch {
	case unsupported != nil && (failed == nil || errors.Is(failed, dataplane.ErrUnsupported)):
		return errors.Join(unsupported, failed)
	case unsupported != nil: // it must not hide the others
		return fmt.Errorf("%v\n%w", unsupported, failed) //nolint:errorlint // see above
	case errors.Is(failed, dataplane.ErrUnsupported):
		return errors.New(failed.Error())
	}
	return failed
}
