package install

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestUntilReportsTheLastError(t *testing.T) {
	tries := 0
	err := Until(t.Context(), time.Minute, func(context.Context) error {
		if tries++; tries < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil || tries != 3 {
		t.Errorf("until = %v after %d tries, want nil after 3", err, tries)
	}
	why := errors.New("why")
	if err := Until(t.Context(), 30*time.Millisecond, func(context.Context) error { return why }); !errors.Is(err, why) {
		t.Errorf("until = %v, want the last error", err)
	}
	tries = 0
	err = Until(t.Context(), time.Minute, func(context.Context) error { tries++; return ErrEnded })
	if !errors.Is(err, ErrEnded) || tries != 1 {
		t.Errorf("until = %v after %d tries, want it to give up at once", err, tries)
	}
}
