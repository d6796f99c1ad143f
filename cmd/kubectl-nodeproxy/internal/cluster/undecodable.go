package cluster

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// explainRead is explain for an error of reading objects of a kind. One object that cannot be
// decoded spoils the whole list, and is named.
func (r *Reader) explainRead(ctx context.Context, of Kind, err error) error {
	if unreadable(err) {
		if found := r.undecodable(ctx, of); found != nil {
			return found
		}
	}
	return r.explain(of, err)
}

// undecodable finds an object of a kind that cannot be decoded; nil: there is none, or
// objects cannot be read at all.
func (r *Reader) undecodable(ctx context.Context, of Kind) error {
	list := &unstructured.UnstructuredList{}
	gvk := kinds()[of].gvk
	list.SetGroupVersionKind(gvk)
	for first := true; first || list.GetContinue() != ""; first = false {
		if err := r.client.List(ctx, list, client.Limit(pageSize), client.Continue(list.GetContinue())); err != nil {
			return nil //nolint:nilerr // the first error is more useful
		}
		for i := range list.Items {
			item := &list.Items[i]
			text, err := item.MarshalJSON()
			if err != nil {
				continue
			}
			object, err := r.scheme.New(gvk)
			if err != nil {
				return nil //nolint:nilerr // the first error is more useful
			}
			if err := json.Unmarshal(text, object); err != nil {
				name := Name{Namespace: item.GetNamespace(), Name: item.GetName()}
				return fmt.Errorf("the %s %s cannot be decoded: %s; is its CRD that of this release? (kubectl get %s -o yaml shows all of them)", gvk.Kind, name, oneLine(err.Error()), resource(of))
			}
		}
	}
	return nil
}
