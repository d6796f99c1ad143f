package objects

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func TestStamp(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		changed, former, want string
	}{
		"nothing is known":          {want: "2026-11-22T12:00:00Z"},
		"it has just changed":       {changed: "2026-11-22T11:59:56.5Z", former: "2026-11-22T11:00:00Z"},
		"it changed before":         {changed: "2026-11-22T11:59:55Z", former: "2026-11-22T11:00:00Z", want: "2026-11-22T12:00:00Z"},
		"it changes in the future":  {changed: "2026-11-22T12:00:01Z", want: "2026-11-22T12:00:00Z"},
		"the change has a bad time": {changed: "noon", want: "2026-11-22T12:00:00Z"},
	} {
		o := &metav1.ObjectMeta{ResourceVersion: "7"}
		for key, value := range map[string]string{v1alpha1.AnnotationLastChangeTriggerTime: c.changed, v1alpha1.AnnotationWritten: c.former} {
			if value != "" {
				metav1.SetMetaDataAnnotation(o, key, value)
			}
		}
		Stamp(o, now)
		if got := o.Annotations[v1alpha1.AnnotationWritten]; got != c.want || len(o.ManagedFields) != 1 {
			t.Errorf("%s: written %q, want %q; %d managed fields", name, got, c.want, len(o.ManagedFields))
		}
	}
	created := &metav1.ObjectMeta{}
	if Stamp(created, now); created.ManagedFields != nil {
		t.Error("a creation has managed fields")
	}
}
