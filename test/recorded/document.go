package recorded

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/diff"
	"sigs.k8s.io/yaml"
)

// document is the file of a state.
type document struct {
	// Parent names the state beside it from which this one differs; empty: it is complete.
	Parent string `json:"parent,omitempty"`
	// Now is when it was recorded.
	Now time.Time `json:"now"`
	// Forbidden are the kinds that the user is not allowed to read.
	Forbidden []string `json:"forbidden,omitempty"`
	// Commands are what the golden tests run on the state, one line each.
	Commands []string `json:"commands,omitempty"`
	// Objects are by kind, such as pods, and then by name or namespace/name. Each is a JSON
	// merge patch (RFC 7386) on that object of the parent, on the object of this state and
	// kind that its field like names, or on nothing. Null deletes an object, or a kind. A patch has maps
	// instead of the keyedLists.
	Objects map[string]map[string]object `json:"objects,omitempty"`
}

// object is an object without kind, namespace and name, which the document has as keys.
type object map[string]any

// likeField is no field of Kubernetes' objects.
const likeField = "like"

// contents are the objects of a state by kind and name.
type contents map[string]map[string]object

const suffix = ".yaml"

// LoadAll loads all states in a directory, by name.
func LoadAll(directory string) (map[string]*State, error) {
	entries, err := os.ReadDir(directory)
	if err != nil {
		return nil, fmt.Errorf("recorded states: %w", err)
	}
	states := map[string]*State{}
	for _, entry := range entries {
		name, stored := strings.CutSuffix(entry.Name(), suffix)
		if !stored && !entry.IsDir() {
			continue
		}
		if states[name], err = Load(filepath.Join(directory, name)); err != nil {
			return nil, err
		}
	}
	return states, nil
}

// loadDocument loads a state from its file; children are the states that need it.
func loadDocument(path string, children ...string) (*State, contents, error) {
	text, err := os.ReadFile(path + suffix)
	if err != nil {
		return nil, nil, fmt.Errorf("recorded state: %w", err)
	}
	d := document{}
	if err := yaml.UnmarshalStrict(text, &d); err != nil {
		return nil, nil, fmt.Errorf("recorded state %s: %w", path, err)
	}
	if slices.Contains(children, path) {
		return nil, nil, fmt.Errorf("recorded state %s is its own ancestor", path)
	}
	all := contents{}
	if d.Parent != "" {
		if _, all, err = loadDocument(filepath.Join(filepath.Dir(path), d.Parent), append(children, path)...); err != nil {
			return nil, nil, err
		}
	}
	for kind, patches := range d.Objects {
		if patches == nil {
			delete(all, kind)
			continue
		}
		if all[kind], err = patched(all[kind], patches); err != nil {
			return nil, nil, fmt.Errorf("recorded state %s: %s: %w", path, kind, err)
		}
	}
	return &State{Now: d.Now, Parent: d.Parent, Commands: d.Commands, Forbidden: d.Forbidden, lists: all.lists()}, all, nil
}

// patched returns the objects of a kind with a document's patches applied.
func patched(objects, patches map[string]object) (map[string]object, error) {
	all := maps.Clone(objects)
	if all == nil {
		all = map[string]object{}
	}
	var alike []string
	for name, patch := range patches {
		switch base := objects[name]; {
		case patch == nil:
			if base == nil {
				return nil, fmt.Errorf("%s is deleted, and the parent does not have it", name)
			}
			delete(all, name)
		case patch[likeField] != nil:
			alike = append(alike, name)
		default:
			var err error
			if all[name], err = merged(base, patch); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	for len(alike) > 0 {
		var later []string // those like an object of this kind that is like another one itself
		for _, name := range alike {
			patch := maps.Clone(patches[name])
			like := fmt.Sprint(patch[likeField])
			if slices.Contains(alike, like) {
				later = append(later, name)
				continue
			}
			if delete(patch, likeField); all[like] == nil {
				return nil, fmt.Errorf("%s is like %s, which is missing", name, like)
			}
			var err error
			if all[name], err = merged(all[like], patch); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
		if len(later) == len(alike) {
			return nil, fmt.Errorf("%s are like each other", strings.Join(later, ", "))
		}
		alike = later
	}
	return all, nil
}

// merged returns an object with a merge patch applied.
func merged(base, patch object) (object, error) {
	if base == nil {
		base = object{}
	}
	base = keyed(base)
	for _, l := range keyedLists { // which the patch may replace as a whole
		if _, whole := child(patch, l.in)[l.field].([]any); whole {
			drop(child(base, l.in), l.field)
		}
	}
	out, err := convert(base, keyed(patch), jsonpatch.MergePatch)
	return listed(out), err
}

// difference returns the merge patch that makes an object of another one.
func difference(from, to object) (object, error) {
	return convert(keyed(from), keyed(to), jsonpatch.CreateMergePatch)
}

func convert(a, b object, f func(a, b []byte) ([]byte, error)) (object, error) {
	textA, errA := json.Marshal(a)
	textB, errB := json.Marshal(b)
	if err := errors.Join(errA, errB); err != nil {
		return nil, err
	}
	text, err := f(textA, textB)
	if err != nil {
		return nil, err
	}
	out := object{}
	return out, json.Unmarshal(text, &out)
}

// contents returns the objects by kind and name.
func (s *State) contents() contents {
	all := contents{}
	for _, k := range kinds() {
		list := s.lists[k.GroupVersionResource]
		if list == nil {
			continue
		}
		all[k.Resource] = map[string]object{}
		for i := range list.Items {
			o := list.Items[i].DeepCopy()
			key := strings.TrimPrefix(o.GetNamespace()+"/"+o.GetName(), "/")
			drop(o.Object, "apiVersion", "kind")
			drop(child(o.Object, "metadata"), "namespace", "name")
			all[k.Resource][key] = o.Object
		}
	}
	return all
}

// lists returns the objects as the API server lists them.
func (c contents) lists() map[schema.GroupVersionResource]*unstructured.UnstructuredList {
	lists := map[schema.GroupVersionResource]*unstructured.UnstructuredList{}
	for _, k := range kinds() {
		objects, known := c[k.Resource]
		if !known {
			continue
		}
		list := &unstructured.UnstructuredList{}
		for key, content := range objects {
			namespace, name, namespaced := strings.Cut(key, "/")
			if !namespaced {
				namespace, name = "", key
			}
			o := (&unstructured.Unstructured{Object: content}).DeepCopy()
			o.SetNamespace(namespace)
			o.SetName(name)
			o.SetAPIVersion(k.GroupVersion().String())
			o.SetKind(k.kind)
			list.Items = append(list.Items, *o)
		}
		sortByName(list)
		lists[k.GroupVersionResource] = list
	}
	return lists
}

// Store writes states as files of a directory, each as what differs from its parent, and
// checks that the files yield the same states. It first trims the states.
func Store(directory string, states map[string]*State) error {
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return fmt.Errorf("store states: %w", err)
	}
	for _, state := range states {
		state.trim()
	}
	for name, state := range states {
		if err := state.store(filepath.Join(directory, name), states[state.Parent]); err != nil {
			return fmt.Errorf("store state %s: %w", name, err)
		}
	}
	for name, state := range states {
		stored, err := Load(filepath.Join(directory, name))
		if err != nil {
			return fmt.Errorf("store state %s: %w", name, err)
		}
		if got, want := stored.contents(), state.contents(); !equality.Semantic.DeepEqual(got, want) {
			return fmt.Errorf("store state %s: the file yields another state: %s", name, diff.Diff(want, got))
		}
	}
	return nil
}

// store writes one state. The parent is nil for one that has none.
func (s *State) store(path string, parent *State) error {
	if (s.Parent == "") != (parent == nil) {
		return fmt.Errorf("there is no state %q, its parent: %w", s.Parent, fs.ErrNotExist)
	}
	before := contents{}
	if parent != nil {
		before = parent.contents()
	}
	d := document{Parent: s.Parent, Now: s.Now.UTC(), Forbidden: s.Forbidden, Commands: s.Commands, Objects: map[string]map[string]object{}}
	after := s.contents()
	for _, k := range kinds() {
		was, had := before[k.Resource]
		is, has := after[k.Resource]
		if !has {
			if had {
				d.Objects[k.Resource] = nil
			}
			continue
		}
		patches, err := patchesBetween(was, is)
		if err != nil {
			return fmt.Errorf("%s: %w", k.Resource, err)
		}
		if len(patches) > 0 || !had {
			d.Objects[k.Resource] = patches
		}
	}
	text, err := render(d)
	if err != nil {
		return err
	}
	return os.WriteFile(path+suffix, text, 0o644)
}

// patchesBetween returns the patches that make objects of a kind of others.
func patchesBetween(was, is map[string]object) (map[string]object, error) {
	patches := map[string]object{}
	for name := range was {
		if is[name] == nil {
			patches[name] = nil
		}
	}
	var known []string // may be named by like
	for _, name := range slices.Sorted(maps.Keys(is)) {
		if was[name] != nil {
			known = append(known, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(is)) {
		if was[name] == nil {
			patch, err := shortest(name, is, known)
			if err != nil {
				return nil, err
			}
			patches[name] = patch
			known = append(known, name)
			continue
		}
		patch, err := difference(was[name], is[name])
		if err != nil {
			return nil, err
		}
		if len(patch) > 0 {
			patches[name] = patch
		}
	}
	return patches, nil
}

// shortest returns a new object, as it is or, where that is less than half as long, as what
// differs from one of those that are known.
func shortest(name string, objects map[string]object, known []string) (object, error) {
	best := objects[name]
	text, err := json.Marshal(best)
	if err != nil {
		return nil, err
	}
	length := len(text) / 2
	for _, like := range known {
		patch, err := difference(objects[like], objects[name])
		if err != nil {
			return nil, err
		}
		patch[likeField] = like
		text, err := json.Marshal(patch)
		if err != nil {
			return nil, err
		}
		if len(text) < length {
			best, length = patch, len(text)
		}
	}
	return best, nil
}
