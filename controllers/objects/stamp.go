package objects

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// stampAfter is how long after the change that caused it a write is recorded with a time of its own.
const stampAfter = 5 * time.Second

// Stamp prepares a rendered object for a write. It records when that is, unless the time of the change
// is about the same. An update also drops managedFields, which would be a third of a small object, and
// which every node would receive with each change; those of the creation stay until then, because the
// API server adds them.
func Stamp(o *metav1.ObjectMeta, now time.Time) {
	changed, err := time.Parse(time.RFC3339Nano, o.Annotations[v1alpha1.AnnotationLastChangeTriggerTime])
	if since := now.Sub(changed); err == nil && since >= 0 && since < stampAfter {
		delete(o.Annotations, v1alpha1.AnnotationWritten)
	} else {
		metav1.SetMetaDataAnnotation(o, v1alpha1.AnnotationWritten, now.UTC().Format(time.RFC3339))
	}
	if o.ResourceVersion != "" {
		o.ManagedFields = []metav1.ManagedFieldsEntry{{}}
	}
}
