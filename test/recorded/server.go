package recorded

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// User is who the server takes everybody for.
const User = "jane"

// State is a recorded state of a cluster.
type State struct {
	// Now is when it was recorded.
	Now time.Time
	// Parent names the state from which its file differs.
	Parent string
	// Commands are what the golden tests run on it, one line each.
	Commands []string
	// Forbidden are the kinds that User is not allowed to read.
	Forbidden []string

	lists map[schema.GroupVersionResource]*unstructured.UnstructuredList
}

// Load loads a state from the file path.yaml or, as it was recorded, from the directory path.
func Load(path string) (*State, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return loadDirectory(path)
	}
	s, _, err := loadDocument(path)
	return s, err
}

func loadDirectory(directory string) (*State, error) {
	s := &State{lists: map[schema.GroupVersionResource]*unstructured.UnstructuredList{}}
	text, err := os.ReadFile(filepath.Join(directory, nowFile))
	if err != nil {
		return nil, fmt.Errorf("recorded state: %w", err)
	}
	if s.Now, err = time.Parse(time.RFC3339, strings.TrimSpace(string(text))); err != nil {
		return nil, fmt.Errorf("recorded state %s: %w", directory, err)
	}
	switch text, err := os.ReadFile(filepath.Join(directory, forbiddenFile)); {
	case err == nil:
		s.Forbidden = strings.Fields(string(text))
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("recorded state: %w", err)
	}
	for _, k := range kinds() {
		text, err := os.ReadFile(k.file(directory))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("recorded state: %w", err)
		}
		content := map[string]any{}
		if err := yaml.Unmarshal(text, &content); err != nil {
			return nil, fmt.Errorf("recorded state %s: %w", k.file(directory), err)
		}
		list := &unstructured.UnstructuredList{}
		list.SetUnstructuredContent(content)
		for i := range list.Items {
			list.Items[i].SetAPIVersion(k.GroupVersion().String()) // lists of the server's leave it out
			list.Items[i].SetKind(k.kind)
		}
		s.lists[k.GroupVersionResource] = list
	}
	return s, nil
}

// Serve answers from the state until the test ends, and returns the server's URL. What
// the plugin has no business to ask for is answered with 400, and fails the test.
func (s *State) Serve(t testing.TB) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := s.answer(r)
		var status apierrors.APIStatus
		code := http.StatusOK
		if errors.As(err, &status) {
			of := status.Status()
			of.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
			body, code = of, int(of.Code)
		} else if err != nil {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Date", s.Now.UTC().Format(http.TimeFormat))
		w.WriteHeader(code)
		if err := json.NewEncoder(w).Encode(body); err != nil {
			t.Errorf("answer %s: %v", r.URL, err)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// request is what is asked for.
type request struct {
	kind            kind
	namespace, name string
}

// read reads a path such as /apis/nodeproxy.io/v1alpha1/nodeproxyrules/node-1.
func read(path string) (request, bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	var version schema.GroupVersion
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		version, parts = schema.GroupVersion{Version: parts[1]}, parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		version, parts = schema.GroupVersion{Group: parts[1], Version: parts[2]}, parts[3:]
	default:
		return request{}, false
	}
	var q request
	if len(parts) >= 3 && parts[0] == "namespaces" {
		q.namespace, parts = parts[1], parts[2:]
	}
	i := slices.IndexFunc(kinds(), func(k kind) bool { return k.GroupVersionResource == version.WithResource(parts[0]) })
	if i < 0 || len(parts) > 2 {
		return request{}, false
	}
	q.kind = kinds()[i]
	if len(parts) == 2 {
		q.name = parts[1]
	}
	return q, true
}

func (s *State) answer(r *http.Request) (any, error) {
	q, ok := read(r.URL.Path)
	query := r.URL.Query()
	if !ok || r.Method != http.MethodGet || query.Has("watch") || query.Has("fieldSelector") {
		return nil, errors.New("this server lists and gets recorded kinds, and nothing else")
	}
	resource := q.kind.GroupVersionResource
	if slices.Contains(s.Forbidden, resource.Resource) {
		verb := "list"
		if q.name != "" {
			verb = "get"
		}
		return nil, apierrors.NewForbidden(resource.GroupResource(), q.name, fmt.Errorf("%s %q cannot %s resource %q in API group %q at the cluster scope", "User", User, verb, resource.Resource, resource.Group))
	}
	list := s.lists[resource]
	if list == nil {
		return nil, apierrors.NewGenericServerResponse(http.StatusNotFound, "get", resource.GroupResource(), q.name, "", 0, true)
	}
	items := list.Items
	if q.namespace != "" {
		items = slices.DeleteFunc(slices.Clone(items), func(o unstructured.Unstructured) bool { return o.GetNamespace() != q.namespace })
	}
	selector, err := labels.Parse(query.Get("labelSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if !selector.Empty() {
		items = slices.DeleteFunc(slices.Clone(items), func(o unstructured.Unstructured) bool { return !selector.Matches(labels.Set(o.GetLabels())) })
	}
	partial := strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")
	if q.name != "" {
		i := slices.IndexFunc(items, func(o unstructured.Unstructured) bool { return o.GetName() == q.name })
		if i < 0 {
			return nil, apierrors.NewNotFound(resource.GroupResource(), q.name)
		}
		return content(items[i], partial), nil
	}
	return page(items, q.kind, partial, query.Get("limit"), query.Get("continue"), list.GetResourceVersion())
}

// page returns a part of a list, as its limit requires.
func page(items []unstructured.Unstructured, k kind, partial bool, limit, next, version string) (any, error) {
	start := 0
	if next != "" {
		var err error
		if start, err = strconv.Atoi(next); err != nil {
			return nil, fmt.Errorf("continue: %w", err)
		}
	}
	end := len(items)
	about := map[string]any{"resourceVersion": version}
	if most, err := strconv.Atoi(limit); err == nil && most > 0 && start+most < end {
		end = start + most
		about["continue"] = strconv.Itoa(end)
	}
	out := []any{}
	for _, item := range items[start:end] {
		out = append(out, content(item, partial))
	}
	list := map[string]any{"apiVersion": k.GroupVersion().String(), "kind": k.kind + "List", "metadata": about, "items": out}
	if partial {
		list["apiVersion"], list["kind"] = "meta.k8s.io/v1", "PartialObjectMetadataList"
	}
	return list, nil
}

func content(o unstructured.Unstructured, partial bool) map[string]any {
	if partial {
		return map[string]any{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": o.Object["metadata"]}
	}
	return o.Object
}
