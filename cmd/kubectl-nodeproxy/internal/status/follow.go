package status

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Goal is a state of the cluster for which to wait.
type Goal string

// Goals.
const (
	Healthy    Goal = "healthy"    // no findings, as far as checks can run
	Programmed Goal = "programmed" // every node reports its kernel as programmed
	RolledOut  Goal = "rolled-out" // changes and policies are complete
)

// Meets reports whether the cluster is in a state.
func (r *Report) Meets(goal Goal) bool {
	if r.NodeProxy == nil {
		return false
	}
	switch goal {
	case Programmed:
		return r.Nodes.Total > 0 && r.programmed == r.Nodes.Total
	case RolledOut:
		return r.observed && len(r.Rollouts) == 0
	case Healthy:
	}
	return r.healthy
}

// State is equal for reports that differ only in the time.
func (r *Report) State() string {
	same := *r
	same.Time = metav1.Time{}
	text, _ := json.Marshal(same) // it has only what can be encoded
	return string(text)
}
