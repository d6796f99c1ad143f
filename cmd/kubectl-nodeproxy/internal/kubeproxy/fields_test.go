package kubeproxy

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	proxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// leaves returns the JSON paths of all fields without fields of their own.
func leaves(t reflect.Type, parent string) []string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct {
		t = t.Elem()
	}
	switch t {
	case reflect.TypeFor[metav1.Duration](), reflect.TypeFor[logsapi.TimeOrMetaDuration](), reflect.TypeFor[resource.QuantityValue]():
		return []string{parent} // scalars in JSON
	}
	if t.Kind() != reflect.Struct {
		return []string{parent}
	}
	var out []string
	for field := range t.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		path := parent
		if options != "inline" {
			path = strings.TrimPrefix(parent+"."+name, ".")
		}
		out = append(out, leaves(field.Type, path)...)
	}
	return out
}

// TestEveryField: each field of kube-proxy's configuration is in the table once, and each path
// of the table exists. It fails if Kubernetes adds a field.
func TestEveryField(t *testing.T) {
	t.Parallel()
	all := leaves(reflect.TypeFor[proxyv1alpha1.KubeProxyConfiguration](), "")
	if len(all) < 60 {
		t.Fatalf("only %d fields found: %q", len(all), all)
	}
	var known []string
	for _, f := range Fields() {
		known = append(known, f.Paths...)
	}
	for _, path := range all {
		if n := len(slices.DeleteFunc(slices.Clone(known), func(other string) bool { return other != path })); n != 1 {
			t.Errorf("field %s is in %d rows of Fields: decide what becomes of it, in one", path, n)
		}
	}
	for _, path := range known {
		if !slices.Contains(all, path) {
			t.Errorf("kube-proxy has no field %s", path)
		}
	}
}

// table is the place of the table in docs/migration.md.
const (
	tableBegin = "<!-- table: fields of KubeProxyConfiguration -->\n\n"
	tableEnd   = "\n<!-- end of the table -->\n"
)

// TestDocumentation: docs/migration.md has the table.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	page := filepath.Join("..", "..", "..", "..", "docs", "migration.md")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(text), tableBegin)
	table, after, ends := strings.Cut(rest, tableEnd)
	switch {
	case !begins || !ends:
		t.Fatalf("%s lacks %q or %q", page, tableBegin, tableEnd)
	case table == Documentation():
	case !*update:
		t.Errorf("%s has another table: go test ./cmd/kubectl-nodeproxy/internal/kubeproxy -update writes it", page)
	default:
		if err := os.WriteFile(page, []byte(before+tableBegin+Documentation()+tableEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// changedValue returns a value that is not kube-proxy's default, valid wherever it matters.
func changedValue(path string, field reflect.Value) any {
	special := map[string]any{
		"mode": proxyv1alpha1.ProxyMode("ipvs"), "detectLocalMode": proxyv1alpha1.LocalMode("NodeCIDR"), "clusterCIDR": "10.1.0.0/16",
		"detectLocal.bridgeInterface": "cni1", "detectLocal.interfaceNamePrefix": "cali", "nodePortAddresses": []string{"192.0.2.0/24"},
		"ipvs.scheduler": "lc", "ipvs.excludeCIDRs": []string{"192.0.2.0/24"}, "bindAddress": "192.0.2.1",
		"featureGates": map[string]bool{"AllowServiceExternalIPs": false}, "iptables.localhostNodePorts": false,
	}
	if value, is := special[path]; is {
		return value
	}
	switch field.Interface().(type) {
	case bool:
		return true
	case int32:
		return int32(7)
	case metav1.Duration:
		return metav1.Duration{Duration: 7 * time.Second}
	case string:
		return "192.0.2.1:7"
	}
	return nil
}

// prepare sets what a field needs to matter.
func prepare(c *config, path string) {
	switch {
	case strings.HasPrefix(path, "ipvs."):
		c.Mode = "ipvs"
	case strings.HasPrefix(path, "nftables."):
		c.Mode = "nftables"
	case path == "detectLocal.bridgeInterface":
		c.DetectLocalMode, c.DetectLocal.BridgeInterface = "BridgeInterface", "cni0"
	case path == "detectLocal.interfaceNamePrefix":
		c.DetectLocalMode, c.DetectLocal.InterfaceNamePrefix = "InterfaceNamePrefix", "veth"
	}
}

// result returns the settings and the losses of a configuration.
func result(path string, change bool) (*v1alpha1.ProxySettings, []string) {
	c := &config{owner: "DaemonSet kube-system/kube-proxy", flags: map[string]string{}, disabled: map[string]bool{}}
	prepare(c, path)
	setDefaults(&c.KubeProxyConfiguration)
	if field, found := valueAt(reflect.ValueOf(&c.KubeProxyConfiguration), path); found && change {
		if value := changedValue(path, deref(field)); value != nil && field.Kind() == reflect.Pointer {
			pointer := reflect.New(field.Type().Elem())
			pointer.Elem().Set(reflect.ValueOf(value))
			field.Set(pointer)
		} else if value != nil {
			field.Set(reflect.ValueOf(value))
		}
	}
	platformDefaults(&c.KubeProxyConfiguration)
	settings := translate(c)
	var lost []string
	for _, n := range c.notes {
		if n.lost {
			lost = append(lost, n.text)
		}
	}
	return settings, lost
}

// TestCodeAgreesWithTable: the code does with each field what the table documents: it changes
// exactly the settings named there, reports the loss of the field, or neither.
func TestCodeAgreesWithTable(t *testing.T) {
	t.Parallel()
	for _, f := range Fields() {
		for _, path := range f.Paths {
			before, _ := result(path, false)
			after, lost := result(path, true)
			changed := differing(before, after)
			switch {
			case len(f.Becomes) > 0:
				if len(lost) > 0 || len(changed) == 0 {
					t.Errorf("%s should become %q; it changes %q, and is lost: %q", path, f.Becomes, changed, lost)
				}
				for _, field := range changed {
					if path != "mode" && !slices.ContainsFunc(f.Becomes, func(name string) bool { return field == name || strings.HasPrefix(name, field+".") }) {
						t.Errorf("%s should become %q, but changes %s", path, f.Becomes, field)
					}
				}
			case f.lost():
				if len(lost) != 1 || !strings.Contains(lost[0], path) || !strings.Contains(lost[0], f.Why) || len(changed) > 0 {
					t.Errorf("%s should be lost, because %s: %q; it changes %q", path, f.Why, lost, changed)
				}
			case len(lost)+len(changed) > 0:
				t.Errorf("%s should not matter: lost %q, changed %q", path, lost, changed)
			}
		}
	}
}

// differing returns the paths of the fields that differ.
func differing(a, b *v1alpha1.ProxySettings) []string {
	out, cleared := overrides(a, b)
	paths := cleared
	var walk func(parent string, v reflect.Value)
	walk = func(parent string, v reflect.Value) {
		for i := range v.NumField() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			path, field := strings.TrimPrefix(parent+"."+name, "."), v.Field(i)
			_, whole := reflect.TypeAssert[interface{ SetAsWhole() }](field)
			switch {
			case field.IsZero():
			case field.Kind() == reflect.Pointer && field.Elem().Kind() == reflect.Struct && !whole:
				walk(path, field.Elem())
			default:
				paths = append(paths, path)
			}
		}
	}
	walk("", reflect.ValueOf(out).Elem())
	return paths
}
