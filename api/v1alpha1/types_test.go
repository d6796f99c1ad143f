package v1alpha1

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
)

// TestDeepCopies fills every field of every kind: a copy must be equal and share nothing,
// because cached objects are copied before they are changed.
func TestDeepCopies(t *testing.T) {
	for kind := range knownTypes(t) {
		t.Run(kind, func(t *testing.T) {
			object, err := scheme(t).New(GroupVersion.WithKind(kind))
			if err != nil {
				t.Fatal(err)
			}
			fill(reflect.ValueOf(object).Elem())
			copied := object.DeepCopyObject()
			if diff := cmp.Diff(object, copied); diff != "" {
				t.Errorf("(-object +copy):\n%s", diff)
			}
			for _, path := range shared(reflect.ValueOf(object).Elem(), reflect.ValueOf(copied).Elem(), kind) {
				t.Errorf("%s is shared with the copy", path)
			}
		})
	}
}

// TestSchemeHasEveryKind: the scheme has each CRD's kind and its list, and no other.
func TestSchemeHasEveryKind(t *testing.T) {
	known := knownTypes(t)
	for kind, crd := range crds(t) {
		if crd.Spec.Group != GroupVersion.Group || crd.Spec.Versions[0].Name != GroupVersion.Version {
			t.Errorf("%s is of %s/%s, want %s", kind, crd.Spec.Group, crd.Spec.Versions[0].Name, GroupVersion)
		}
		for _, name := range []string{kind, crd.Spec.Names.ListKind} {
			if !known[name] {
				t.Errorf("the scheme does not have %s", name)
			}
			delete(known, name)
		}
	}
	for kind := range known {
		t.Errorf("the scheme has %s, which has no CRD", kind)
	}
}

// knownTypes returns the kinds of this package.
func knownTypes(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for kind, goType := range scheme(t).KnownTypes(GroupVersion) {
		if goType.PkgPath() == reflect.TypeFor[NodeProxy]().PkgPath() {
			out[kind] = true
		}
	}
	return out
}

func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestNames checks that the API server accepts the names of conditions, labels and annotations,
// and that they are unique.
func TestNames(t *testing.T) {
	conditionType := regexp.MustCompile(`^[A-Z][A-Za-z]{0,62}$`)
	reason := regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`)
	seen := map[string]string{}
	counted := map[string]int{}
	for name, value := range constants(t, "names.go") {
		prefix := regexp.MustCompile(`^[A-Z][a-z]+`).FindString(name)
		switch prefix {
		case "Condition":
			if !conditionType.MatchString(value) {
				t.Errorf("%s: %q is no type of a condition", name, value)
			}
		case "Reason":
			if len(value) > 1024 || !reason.MatchString(value) || name != "Reason"+value {
				t.Errorf("%s: %q is no reason, or that of another name", name, value)
			}
		case "Label", "Annotation", "Finalizer", "Taint":
			if errs := validation.IsQualifiedName(value); len(errs) > 0 || !strings.Contains(value, "/") {
				t.Errorf("%s: %q: %v", name, value, errs)
			}
		default:
			continue
		}
		counted[prefix]++
		if other, taken := seen[prefix+value]; taken {
			t.Errorf("%s and %s are both %q", name, other, value)
		}
		seen[prefix+value] = name
	}
	for _, prefix := range []string{"Condition", "Reason", "Annotation", "Finalizer", "Taint"} {
		if counted[prefix] == 0 {
			t.Errorf("no constant begins with %s", prefix)
		}
	}
}

// constants returns the string constants of a file.
func constants(t *testing.T, file string) map[string]string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	ast.Inspect(parsed, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		if literal, ok := spec.Values[0].(*ast.BasicLit); ok && literal.Kind == token.STRING {
			value, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Fatal(err)
			}
			out[spec.Names[0].Name] = value
		}
		return true
	})
	return out
}

// TestFormatVersions: a release knows every format up to its own; an agent that reports none
// knows the first.
func TestFormatVersions(t *testing.T) {
	versions := FormatVersions()
	for i, v := range versions {
		if v != int32(i)+1 {
			t.Errorf("formats %v are not counted from 1", versions)
		}
	}
	if len(versions) != int(FormatVersion) {
		t.Errorf("formats %v, and the newest is %d", versions, FormatVersion)
	}
	for want, report := range map[string]*AgentReport{"[1]": {}, "[1 2]": {FormatVersions: []int32{1, 2}}, "[2]": {FormatVersions: []int32{2}}} {
		if got := fmt.Sprint(report.KnownFormats()); got != want {
			t.Errorf("an agent that reports %v knows %s, want %s", report.FormatVersions, got, want)
		}
	}
}

// TestInventoryHash compares with published values of 64-bit FNV-1a: controller and agents of
// different releases must agree.
func TestInventoryHash(t *testing.T) {
	for name, want := range map[string]uint64{"": 0xcbf29ce484222325, "a": 0xaf63dc4c8601ec8c, "foobar": 0x85944171f73967e8} {
		if got := NameHash(name); got != want {
			t.Errorf("the hash of %q is %x, want %x", name, got, want)
		}
	}
	for sum, want := range map[uint64]string{0: "0000000000000000", 0xab: "00000000000000ab", 1<<64 - 1: "ffffffffffffffff"} {
		if got := FormatInventoryHash(sum); got != want {
			t.Errorf("%x is written as %q, want %q", sum, got, want)
		}
	}
	if got := ServiceProxyRulesName("kube-system", "kube-dns"); got != "kube-system.kube-dns" {
		t.Errorf("the name of kube-dns's rules is %q", got)
	}
}

// fill sets every exported field; slices and maps get one element.
func fill(v reflect.Value) {
	switch value := v.Addr().Interface().(type) {
	case *metav1.Time:
		*value = metav1.Unix(1_700_000_000, 0)
		return
	case *metav1.MicroTime:
		*value = metav1.NewMicroTime(time.Unix(1_700_000_000, 0))
		return
	case *resource.Quantity:
		*value = resource.MustParse("7")
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i))
			}
		}
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(7)
	default:
		panic("fill does not know " + v.Type().String())
	}
}

// shared lists the paths at which two values of a type share memory.
func shared(a, b reflect.Value, path string) (found []string) {
	switch a.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice:
		if a.IsNil() || b.IsNil() {
			return nil
		}
		if a.Pointer() == b.Pointer() {
			return []string{path}
		}
	}
	switch a.Kind() {
	case reflect.Pointer:
		if a.Type() == reflect.TypeFor[*time.Location]() {
			return nil
		}
		return shared(a.Elem(), b.Elem(), path)
	case reflect.Slice:
		for i := range min(a.Len(), b.Len()) {
			found = append(found, shared(a.Index(i), b.Index(i), path+"[]")...)
		}
	case reflect.Map:
		for _, key := range a.MapKeys() {
			if other := b.MapIndex(key); other.IsValid() {
				found = append(found, shared(a.MapIndex(key), other, path+"{}")...)
			}
		}
	case reflect.Struct:
		for i := range a.NumField() {
			if a.Type().Field(i).IsExported() {
				found = append(found, shared(a.Field(i), b.Field(i), path+"."+a.Type().Field(i).Name)...)
			}
		}
	}
	return found
}
