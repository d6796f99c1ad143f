package worlds

import (
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

// Describe writes a Service and its slices as they are asked for.
func (w *World) Describe(b *strings.Builder, name string) {
	s := w.Find(name)
	if s == nil {
		fmt.Fprintf(b, "\n%s does not exist (any more).\n", name)
		return
	}
	if s.Gone {
		fmt.Fprintf(b, "\n%s does not exist any more; its slices do.\n", name)
	}
	objects := []any{s.Object}
	for _, sl := range s.slices {
		objects = append(objects, sl.object(s.endpoints))
	}
	for _, o := range objects {
		text, err := yaml.Marshal(o)
		if err != nil {
			text = []byte(err.Error())
		}
		fmt.Fprintf(b, "---\n%s", text)
	}
}
