package recorded

import (
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// trim drops from all objects what the plugin never reads.
func (s *State) trim() {
	for _, k := range kinds() {
		if list := s.lists[k.GroupVersionResource]; list != nil {
			for i := range list.Items {
				trim(k, &list.Items[i])
			}
		}
	}
}

// trim drops from an object what the plugin never reads, so that a state is short
// enough to be reviewed. Nulls go as well: they mean the same as no field.
func trim(k kind, o *unstructured.Unstructured) {
	o.Object = withoutNulls(o.Object)
	sortLists(o.Object)
	metadata := child(o.Object, "metadata")
	drop(metadata, "uid", "generateName", "ownerReferences", "finalizers", "selfLink")
	drop(metadata, "managedFields")
	if annotations := child(metadata, "annotations"); annotations != nil {
		drop(annotations, "kubectl.kubernetes.io/last-applied-configuration", "endpoints.kubernetes.io/last-change-trigger-time")
		if len(annotations) == 0 {
			drop(metadata, "annotations")
		}
	}
	switch k.kind {
	case "NodeProxyRules", "ServiceProxyRules", "NodeProxy", "NodeProxyPolicy", "ServiceProxyPolicy":
		return
	}
	drop(metadata, "resourceVersion", "generation", "annotations")
	switch k.kind {
	case "Namespace":
		drop(metadata, "creationTimestamp")
		drop(o.Object, "spec", "status")
	case "EndpointSlice":
		for _, endpoint := range elements(o.Object, "endpoints") {
			drop(child(endpoint, "targetRef"), "uid")
		}
	case "Pod":
		trimPod(o.Object)
	}
}

func trimPod(pod map[string]any) {
	retain(child(pod, "spec"), "nodeName", "hostNetwork", "nodeSelector", "os")
	status := child(pod, "status")
	retain(status, "phase", "podIP", "podIPs", "conditions", "initContainerStatuses", "containerStatuses")
	filter(status, "conditions", func(c map[string]any) bool {
		drop(c, "lastProbeTime")
		return c["type"] == "Ready" || c["status"] != "True"
	})
	for _, field := range []string{"initContainerStatuses", "containerStatuses"} {
		filter(status, field, func(container map[string]any) bool {
			retain(container, "name", "state")
			state := child(container, "state")
			drop(state, "running")
			return len(state) > 0
		})
	}
}

func withoutNulls(in map[string]any) map[string]any {
	for key, value := range in {
		switch value := value.(type) {
		case nil:
			delete(in, key)
		case map[string]any:
			withoutNulls(value)
		case []any:
			for _, element := range value {
				if element, is := element.(map[string]any); is {
					withoutNulls(element)
				}
			}
		}
	}
	return in
}

// child returns the map in a field; nil: there is none.
func child(of map[string]any, field string) map[string]any {
	in, _ := of[field].(map[string]any)
	return in
}

// elements returns the maps in a field that is a list.
func elements(of map[string]any, field string) []map[string]any {
	all, _ := of[field].([]any)
	var maps []map[string]any
	for _, element := range all {
		if element, is := element.(map[string]any); is {
			maps = append(maps, element)
		}
	}
	return maps
}

// filter retains the elements of a list that keep reports, and no empty list.
func filter(of map[string]any, field string, keep func(map[string]any) bool) {
	var remaining []any
	for _, element := range elements(of, field) {
		if keep(element) {
			remaining = append(remaining, element)
		}
	}
	if of[field] = remaining; len(remaining) == 0 {
		drop(of, field)
	}
}

func drop(from map[string]any, fields ...string) {
	for _, field := range fields {
		delete(from, field)
	}
}

func retain(in map[string]any, fields ...string) {
	for field := range in {
		if !slices.Contains(fields, field) {
			delete(in, field)
		}
	}
}
