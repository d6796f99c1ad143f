package agenttest

import (
	"context"
	"fmt"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Board simulates the API: it stores what is written.
type Board struct {
	Stored *v1alpha1.NodeProxyRules
	Writes int
	Tries  int
	Err    error
}

// Write stores a status, or returns the error that is set.
func (b *Board) Write(_ context.Context, _ *v1alpha1.NodeProxyRules, status *v1alpha1.NodeProxyRulesStatus) (*v1alpha1.NodeProxyRules, error) {
	b.Tries++
	if b.Err != nil {
		return nil, b.Err
	}
	b.Writes++
	b.Stored = b.Stored.DeepCopy()
	b.Stored.Status = *status.DeepCopy()
	b.touch()
	return b.Stored, nil
}

// touch gives the object a new version.
func (b *Board) touch() {
	var version int
	_, _ = fmt.Sscan(b.Stored.ResourceVersion, &version)
	b.Stored.ResourceVersion = fmt.Sprint(version + 1)
}

// Edit changes the stored status as another program would.
func (b *Board) Edit(change func(*v1alpha1.NodeProxyRulesStatus)) {
	b.Stored = b.Stored.DeepCopy()
	change(&b.Stored.Status)
	b.touch()
}
