package manifests_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/discovery"
)

// verbs are all that roles can allow, those of virtual resources aside.
var verbs = []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}

// action is something that a user is allowed to do. The zero namespace is the whole
// cluster.
type action struct {
	verb, group, resource, subresource, namespace string
}

// String is a line such as "nodeproxy-system: patch leases.coordination.k8s.io".
func (a action) String() string {
	resource := a.resource
	if a.group != "" {
		resource += "." + a.group
	}
	if a.subresource != "" {
		resource += "/" + a.subresource
	}
	where := a.namespace
	if where == "" {
		where = "cluster"
	}
	return fmt.Sprintf("%s: %s %s", where, a.verb, resource)
}

// actions are all that the API server can be asked for, in the whole cluster and
// in some namespaces.
func actions(t *testing.T, namespaces ...string) []action {
	t.Helper()
	d, err := discovery.NewDiscoveryClientForConfig(server.config)
	if err != nil {
		t.Fatal(err)
	}
	_, lists, err := d.ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	var all []action
	for _, list := range lists {
		group, _, found := strings.Cut(list.GroupVersion, "/")
		if !found {
			group = ""
		}
		for _, r := range list.APIResources {
			resource, subresource, _ := strings.Cut(r.Name, "/")
			for _, verb := range verbs {
				all = append(all, action{verb: verb, group: group, resource: resource, subresource: subresource})
				for _, namespace := range namespaces {
					if r.Namespaced {
						all = append(all, action{verb, group, resource, subresource, namespace})
					}
				}
			}
		}
	}
	// What roles can allow besides, and discovery does not name.
	all = append(all,
		action{verb: "impersonate", resource: "users"}, action{verb: "impersonate", resource: "groups"},
		action{verb: "impersonate", resource: "serviceaccounts"},
		action{verb: "escalate", group: "rbac.authorization.k8s.io", resource: "clusterroles"},
		action{verb: "bind", group: "rbac.authorization.k8s.io", resource: "clusterroles"},
		action{verb: "approve", group: "certificates.k8s.io", resource: "signers"},
	)
	slices.SortFunc(all, func(a, b action) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(all) // one for all versions of a group
}

// allowed returns which actions a user may do, as lines. Actions in a namespace
// are left out where they are allowed in the whole cluster.
func allowed(t *testing.T, user string, groups []string, all []action) []string {
	t.Helper()
	groups = append([]string{"system:authenticated"}, groups...)
	granted := make([]bool, len(all))
	failures := make([]error, len(all))
	var work sync.WaitGroup
	places := make(chan struct{}, 16)
	for i, a := range all {
		places <- struct{}{}
		work.Go(func() {
			defer func() { <-places }()
			granted[i], failures[i] = mayDo(t.Context(), user, groups, a)
		})
	}
	work.Wait()
	if err := errors.Join(failures...); err != nil {
		t.Fatal(err)
	}
	everywhere := map[action]bool{}
	for i, a := range all {
		if granted[i] && a.namespace == "" {
			everywhere[a] = true
		}
	}
	var lines []string
	for i, a := range all {
		inCluster := a
		inCluster.namespace = ""
		if granted[i] && (a.namespace == "" || !everywhere[inCluster]) {
			lines = append(lines, a.String())
		}
	}
	return lines
}

// mayDo asks the API server whether a user may do something.
func mayDo(ctx context.Context, user string, groups []string, a action) (bool, error) {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user, Groups: groups,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: a.verb, Group: a.group, Resource: a.resource, Subresource: a.subresource, Namespace: a.namespace,
		},
	}}
	if err := server.client.Create(ctx, review); err != nil {
		return false, fmt.Errorf("asking for %s: %w", a, err)
	}
	return review.Status.Allowed, nil
}

// groupsOf are those of a service account of nodeproxy.
func groupsOf() []string {
	return []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace}
}

// userOf is what a service account of nodeproxy is called as a user.
func userOf(account string) string { return "system:serviceaccount:" + namespace + ":" + account }

// everybody may ask the API server who he is and what he may do.
var everybody = []string{
	"cluster: create selfsubjectaccessreviews.authorization.k8s.io",
	"cluster: create selfsubjectreviews.authentication.k8s.io",
	"cluster: create selfsubjectrulesreviews.authorization.k8s.io",
}

// TestAgentMayDoNothingElse asks for every verb of every resource that the API
// server has.
func TestAgentMayDoNothingElse(t *testing.T) {
	readManifests(t)
	want := slices.Concat(everybody, []string{
		"cluster: get nodeproxies.nodeproxy.io",
		"cluster: get nodeproxyrules.nodeproxy.io",
		"cluster: get serviceproxyrules.nodeproxy.io",
		"cluster: list nodeproxies.nodeproxy.io",
		"cluster: list nodeproxyrules.nodeproxy.io",
		"cluster: list serviceproxyrules.nodeproxy.io",
		"cluster: patch nodeproxyrules.nodeproxy.io/status",
		"cluster: watch nodeproxies.nodeproxy.io",
		"cluster: watch nodeproxyrules.nodeproxy.io",
		"cluster: watch serviceproxyrules.nodeproxy.io",
		"nodeproxy-system: create leases.coordination.k8s.io",
		"nodeproxy-system: patch leases.coordination.k8s.io",
	})
	slices.Sort(want)
	all := actions(t, namespace, "default", "kube-system")
	got := allowed(t, userOf(agentAccount), groupsOf(), all)
	if !slices.Equal(got, want) {
		t.Errorf("of %d actions the agents may do\n%s\nwant\n%s", len(all), strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
