package kubeproxy

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"reflect"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	proxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	netutils "k8s.io/utils/net"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// config is the effective configuration of a kube-proxy.
type config struct {
	proxyv1alpha1.KubeProxyConfiguration
	// owner is the object with the command line.
	owner string
	// file is the object and key with the configuration file, or the owner's annotation with
	// the command line; empty: there is none.
	file string
	// flags are the fields that flags have set, with the names of the flags.
	flags map[string]string
	// node is the name of the only node of this configuration; empty: there may be several.
	node string
	// disabled are the servers that are switched off, by their fields.
	disabled map[string]bool
	notes    []note
}

// note is a comment for the user.
type note struct {
	// at is the field of spec that it concerns, such as settings.detectLocal.
	at   string
	text string
	// lost reports that something was not carried over.
	lost bool
}

// lose records what is not carried over.
func (c *config) lose(at, format string, args ...any) {
	c.notes = append(c.notes, note{at, fmt.Sprintf("not carried over: "+format, args...), true})
}

// explain records what the user should know.
func (c *config) explain(at, format string, args ...any) {
	c.notes = append(c.notes, note{at, fmt.Sprintf(format, args...), false})
}

// source names the object and the field, or the flag, that has the value of a path.
func (c *config) source(path string) string {
	if flag, is := c.flags[path]; is {
		return c.owner + ": --" + flag
	}
	return cmp.Or(c.file, c.owner) + ": " + path
}

// errWrongKind means that a file is no KubeProxyConfiguration.
var errWrongKind = errors.New("apiVersion and kind must be kubeproxy.config.k8s.io/v1alpha1 and KubeProxyConfiguration")

// decode reads a configuration file. Like kube-proxy, it ignores unknown fields, and returns
// them.
func decode(text string) (proxyv1alpha1.KubeProxyConfiguration, []error, error) {
	out := proxyv1alpha1.KubeProxyConfiguration{}
	content, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		return out, nil, fmt.Errorf("not valid YAML: %s", strings.Join(strings.Fields(err.Error()), " "))
	}
	ignored, err := kjson.UnmarshalStrict(content, &out)
	if err != nil {
		return out, nil, fmt.Errorf("not a valid configuration: %w", err)
	}
	if out.APIVersion != proxyv1alpha1.SchemeGroupVersion.String() || out.Kind != "KubeProxyConfiguration" {
		return out, nil, errWrongKind
	}
	return out, ignored, nil
}

// setDefaults sets absent fields that matter here to kube-proxy's defaults.
func setDefaults(c *proxyv1alpha1.KubeProxyConfiguration) {
	c.BindAddress = cmp.Or(c.BindAddress, "0.0.0.0")
	every, loopback := "0.0.0.0", "127.0.0.1"
	if ip := netutils.ParseIPSloppy(c.BindAddress); ip != nil && ip.To4() == nil {
		every, loopback = "::", "::1"
	}
	c.HealthzBindAddress = withPort(cmp.Or(c.HealthzBindAddress, every), "10256")
	c.MetricsBindAddress = withPort(cmp.Or(c.MetricsBindAddress, loopback), "10249")
	for _, period := range []*metav1.Duration{&c.IPTables.MinSyncPeriod, &c.NFTables.MinSyncPeriod} { // none in mode ipvs
		period.Duration = cmp.Or(period.Duration, time.Second)
	}
	setDefault(&c.IPTables.LocalhostNodePorts, true)
	setDefault(&c.IPTables.MasqueradeBit, 14)
	setDefault(&c.NFTables.MasqueradeBit, 14)
	setDefault(&c.Conntrack.MaxPerCore, 32*1024)
	setDefault(&c.Conntrack.Min, 128*1024)
	setDefault(&c.Conntrack.TCPEstablishedTimeout, metav1.Duration{Duration: 24 * time.Hour})
	setDefault(&c.Conntrack.TCPCloseWaitTimeout, metav1.Duration{Duration: time.Hour})
}

func setDefault[T any](field **T, value T) {
	if *field == nil {
		*field = new(value)
	}
}

// platformDefaults sets what kube-proxy decides on Linux when it has read flags and file.
func platformDefaults(c *proxyv1alpha1.KubeProxyConfiguration) {
	c.Mode = cmp.Or(c.Mode, "iptables")
	if c.Mode == "nftables" && len(c.NodePortAddresses) == 0 {
		c.NodePortAddresses = []string{primary}
	}
	c.DetectLocalMode = cmp.Or(c.DetectLocalMode, "ClusterCIDR")
}

// primary is a value of nodePortAddresses.
const primary = "primary"

// withPort appends the port to an address without one.
func withPort(address, port string) string {
	if netutils.ParseIPSloppy(address) == nil {
		return address
	}
	return net.JoinHostPort(address, port)
}

// valueAt returns the field at a JSON path. It allocates what is nil on the way.
func valueAt(v reflect.Value, path string) (reflect.Value, bool) {
	for name := range strings.SplitSeq(path, ".") {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
		next, found := child(v, name)
		if !found {
			return v, false
		}
		v = next
	}
	return v, true
}

// child returns the field of a struct that JSON names so.
func child(v reflect.Value, name string) (reflect.Value, bool) {
	if v.Kind() != reflect.Struct {
		return v, false
	}
	for i := range v.NumField() {
		tag, options, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		if tag == name {
			return v.Field(i), true
		}
		if tag == "" && options == "inline" {
			if found, is := child(v.Field(i), name); is {
				return found, true
			}
		}
	}
	return v, false
}
