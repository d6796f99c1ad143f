package manifests_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The annotations by which the API server reports in its log what became of a
// request, and by which role.
const (
	decisionAnnotation = "authorization.k8s.io/decision"
	reasonAnnotation   = "authorization.k8s.io/reason"
)

// auditEvent is what is used here of a line of the log, which is an Event of
// audit.k8s.io/v1.
type auditEvent struct {
	Verb, RequestURI string
	User             struct{ Username string }
	ObjectRef        *struct{ APIGroup, Resource, Subresource, Namespace string }
	ResponseStatus   struct{ Code int }
	Annotations      map[string]string
}

// requestsOf returns the requests of a user so far, as lines such as those of
// allowed, and those that roles have denied. What a Role of the namespace of
// nodeproxy has allowed counts as of this namespace, everything else as of the
// whole cluster. Requests that everybody may make, to find out what there is, are
// left out.
func requestsOf(t *testing.T, user string) (used map[string]bool, denied []string) {
	t.Helper()
	file, err := os.Open(server.auditLog)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	used = map[string]bool{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event auditEvent
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			t.Fatalf("%v: %s", err, lines.Text())
		}
		if event.User.Username != user || event.ObjectRef == nil {
			continue
		}
		a := action{verb: event.Verb, group: event.ObjectRef.APIGroup, resource: event.ObjectRef.Resource, subresource: event.ObjectRef.Subresource}
		if event.Annotations[decisionAnnotation] != "allow" {
			a.namespace = event.ObjectRef.Namespace
			denied = append(denied, fmt.Sprintf("%s (%s): %s", a, event.RequestURI, event.Annotations[reasonAnnotation]))
			continue
		}
		if strings.Contains(event.Annotations[reasonAnnotation], `of Role "`) {
			a.namespace = namespace
		}
		used[a.String()] = true
		if event.Verb == "patch" && event.ResponseStatus.Code == http.StatusCreated {
			a.verb = "create" // server-side apply needs both
			used[a.String()] = true
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return used, denied
}

// granted returns what the ClusterRole and the Role of a name allow, as lines
// such as those of allowed. Names of single objects are left out.
func granted(t *testing.T, role string) []string {
	t.Helper()
	clusterRole, local := &rbacv1.ClusterRole{}, &rbacv1.Role{}
	for _, get := range []struct {
		key  client.ObjectKey
		into client.Object
	}{
		{client.ObjectKey{Name: role}, clusterRole},
		{client.ObjectKey{Namespace: namespace, Name: role}, local},
	} {
		if err := server.client.Get(t.Context(), get.key, get.into); err != nil {
			t.Fatal(err)
		}
	}
	lines := map[string]bool{}
	add := func(rules []rbacv1.PolicyRule, namespace string) {
		for _, rule := range rules {
			for _, group := range rule.APIGroups {
				for _, name := range rule.Resources {
					resource, subresource, _ := strings.Cut(name, "/")
					for _, verb := range rule.Verbs {
						lines[action{verb, group, resource, subresource, namespace}.String()] = true
					}
				}
			}
		}
	}
	add(clusterRole.Rules, "")
	add(local.Rules, namespace)
	return slices.Sorted(maps.Keys(lines))
}
