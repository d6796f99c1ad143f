package kubeproxy

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Namespace is where kube-proxy runs.
const Namespace = "kube-system"

// Cluster reads the objects that run and configure kube-proxy.
type Cluster interface {
	// DaemonSets reads those of a namespace.
	DaemonSets(ctx context.Context, namespace string) ([]appsv1.DaemonSet, error)
	// Pods reads those of a namespace that keep accepts.
	Pods(ctx context.Context, namespace string, keep func(*corev1.Pod) bool) ([]corev1.Pod, error)
	// ConfigMap reads one; nil: it does not exist.
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	// Nodes reads all.
	Nodes(ctx context.Context) ([]corev1.Node, error)
}

// pool is a group of nodes whose kube-proxies have one configuration.
type pool struct {
	// from describes where the configuration comes from.
	from string
	// name is that of the policy.
	name string
	// selectors select the nodes, each some; unselectable: none can.
	selectors    []v1alpha1.LabelSelector
	unselectable error
	// nodes are the names of the nodes, without selectors.
	nodes  []string
	weight int

	config   *config
	settings *v1alpha1.ProxySettings
}

// finder finds the kube-proxies of a cluster.
type finder struct {
	Cluster
	maps  map[string]*corev1.ConfigMap
	nodes []corev1.Node // nil: not read
}

// allNodes reads Nodes once.
func (f *finder) allNodes(ctx context.Context) ([]corev1.Node, error) {
	if f.nodes != nil {
		return f.nodes, nil
	}
	nodes, err := f.Nodes(ctx)
	f.nodes = nodes
	return nodes, err
}

// pools returns the pools of a cluster, those with most nodes first.
func (f *finder) pools(ctx context.Context) ([]*pool, error) {
	pools, err := f.daemonSets(ctx)
	if err != nil {
		return nil, err
	}
	static, err := f.staticPods(ctx)
	if err != nil {
		return nil, err
	}
	if pools = append(pools, static...); len(pools) == 0 {
		if pools, err = f.k3s(ctx); err != nil {
			return nil, err
		}
	}
	if len(pools) == 0 {
		return nil, errNone
	}
	slices.SortStableFunc(pools, func(a, b *pool) int { return cmp.Compare(b.weight, a.weight) })
	if pools[0].weight > 0 { // others run nowhere, such as GKE's DaemonSet beside its static pods
		pools = slices.DeleteFunc(pools, func(p *pool) bool { return p.weight == 0 })
	}
	return pools, f.choose(ctx, pools)
}

// choose adds selectors to pools that are lists of nodes, if there are others.
func (f *finder) choose(ctx context.Context, pools []*pool) error {
	if len(pools) == 1 || !slices.ContainsFunc(pools[1:], func(p *pool) bool { return p.nodes != nil }) {
		return nil
	}
	nodes, err := f.allNodes(ctx)
	if err != nil {
		return err
	}
	hostnames := map[string]string{}
	for _, node := range nodes {
		hostnames[node.Name] = node.Labels[corev1.LabelHostname]
	}
	for _, p := range pools {
		if p.nodes == nil {
			continue
		}
		var list []string
		for _, node := range p.nodes {
			list = append(list, cmp.Or(hostnames[node], node))
		}
		p.selectors = named(list)
	}
	return nil
}

func (f *finder) daemonSets(ctx context.Context) ([]*pool, error) {
	sets, err := f.DaemonSets(ctx, Namespace)
	if err != nil {
		return nil, err
	}
	var pools []*pool
	for i := range sets {
		ds := &sets[i]
		spec := &ds.Spec.Template.Spec
		container, args, is := commandOf(spec)
		if !is || onWindows(spec) {
			continue
		}
		c := &config{owner: "DaemonSet " + Namespace + "/" + ds.Name}
		if err := f.configure(ctx, c, spec, container, args); err != nil {
			return nil, err
		}
		p := &pool{from: c.owner, name: ds.Name, weight: int(ds.Status.DesiredNumberScheduled), config: c, settings: translate(c)}
		p.selectors, p.unselectable = selectors(spec)
		pools = append(pools, p)
	}
	return pools, nil
}

// staticPods returns pools of static pods.
func (f *finder) staticPods(ctx context.Context) ([]*pool, error) {
	pods, err := f.Pods(ctx, Namespace, func(pod *corev1.Pod) bool {
		_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
		_, _, is := commandOf(&pod.Spec)
		return mirror && is && !onWindows(&pod.Spec)
	})
	if err != nil {
		return nil, err
	}
	var configs []*config
	for i := range pods {
		container, args, _ := commandOf(&pods[i].Spec)
		c := &config{owner: "Pod " + Namespace + "/" + pods[i].Name, node: pods[i].Spec.NodeName}
		if err := f.configure(ctx, c, &pods[i].Spec, container, args); err != nil {
			return nil, err
		}
		configs = append(configs, c)
	}
	return byConfiguration(configs), nil
}

// byConfiguration groups the configurations of single nodes by what results from them.
func byConfiguration(configs []*config) []*pool {
	known := map[string]*pool{}
	var pools []*pool
	for _, c := range configs {
		settings := translate(c)
		key := keyOf(c, settings)
		p := known[key]
		if p == nil {
			p = &pool{name: program + "-nodes", config: c, settings: settings}
			known[key] = p
			pools = append(pools, p)
		}
		p.weight++
		p.nodes = append(p.nodes, c.node)
		p.from = c.owner
		if p.weight > 1 {
			p.from = fmt.Sprintf("%s and %s", p.config.owner, text.Count(p.weight-1, "other"))
		}
	}
	return pools
}

// keyOf identifies what results from a configuration, without its owner.
func keyOf(c *config, settings *v1alpha1.ProxySettings) string {
	content, err := json.Marshal(settings)
	if err != nil {
		panic(err) // the types of the API can be encoded
	}
	key := []string{string(content)}
	for _, n := range c.notes {
		key = append(key, strings.ReplaceAll(n.text, c.owner, ""))
	}
	return strings.Join(key, "\n")
}

// configure sets the effective configuration of a command line. It combines flags and file as
// kube-proxy does.
func (f *finder) configure(ctx context.Context, c *config, pod *corev1.PodSpec, container *corev1.Container, args []string) error {
	c.flags, c.disabled = map[string]string{}, map[string]bool{}
	flags, problems := parse(args)
	for _, problem := range problems {
		c.lose("settings", "%s: %s", c.owner, problem)
	}
	file := ""
	for _, flag := range flags {
		if flag.name == flagConfig {
			file = flag.value
		}
	}
	if file == "" {
		setDefaults(&c.KubeProxyConfiguration)
		c.apply(flags)
		platformDefaults(&c.KubeProxyConfiguration)
		return nil
	}
	content, err := f.file(ctx, c, pod, container, file)
	if err != nil {
		return err
	}
	parsed, ignored, err := decode(content)
	if err != nil {
		return invalid("%s: %v", c.file, err)
	}
	c.KubeProxyConfiguration = parsed
	for _, err := range ignored {
		c.lose("settings", "%s: %v, which kube-proxy ignores", c.file, err)
	}
	setDefaults(&c.KubeProxyConfiguration)
	for _, flag := range flags {
		switch {
		case flag.name == flagHostname && flag.value != "":
			c.HostnameOverride, c.flags["hostnameOverride"] = flag.value, flagHostname
		case !withConfig(flag.name):
			c.explain("settings", "%s: kube-proxy ignores --%s because of --config", c.owner, flag.name)
		}
	}
	platformDefaults(&c.KubeProxyConfiguration)
	return nil
}

// mostBytes is the size of a ConfigMap, at most.
const mostBytes = 1 << 20

// file returns the configuration file at a path in a container, and sets c.file.
func (f *finder) file(ctx context.Context, c *config, pod *corev1.PodSpec, container *corev1.Container, at string) (string, error) {
	name, key, found := configMapAt(pod, container, at)
	if !found {
		return "", invalid("%s: --config %q is not from a ConfigMap, so it cannot be read: use the settings by hand", c.owner, clip(at))
	}
	object, known := f.maps[name]
	if !known {
		var err error
		if object, err = f.ConfigMap(ctx, Namespace, name); err != nil {
			return "", err
		}
		f.maps[name] = object
	}
	c.file = fmt.Sprintf("ConfigMap %s/%s, key %s", Namespace, name, key)
	if object == nil {
		return "", invalid("%s: the ConfigMap %s/%s of --config does not exist", c.owner, Namespace, name)
	}
	content, exists := object.Data[key]
	if !exists {
		return "", invalid("%s does not exist, but %s uses it with --config", c.file, c.owner)
	}
	if len(content) > mostBytes {
		return "", invalid("%s: larger than %d bytes", c.file, mostBytes)
	}
	return content, nil
}

// configMapAt returns the ConfigMap, and the key in it, of a file in a container.
func configMapAt(pod *corev1.PodSpec, container *corev1.Container, at string) (name, key string, found bool) {
	at = path.Clean(at)
	longest := -1
	for _, mount := range container.VolumeMounts {
		directory := path.Clean(mount.MountPath)
		relative, below := strings.CutPrefix(at, strings.TrimSuffix(directory, "/")+"/")
		if at == directory {
			relative, below = "", true
		}
		if !below || len(directory) <= longest {
			continue
		}
		longest, found = len(directory), false
		relative = strings.TrimPrefix(path.Join(mount.SubPath, relative), "/")
		for _, volume := range pod.Volumes {
			if volume.Name == mount.Name {
				name, key, found = keyAt(volume.VolumeSource, relative)
			}
		}
	}
	return name, key, found
}

// keyAt returns the ConfigMap and key of a file in a volume.
func keyAt(volume corev1.VolumeSource, file string) (name, key string, found bool) {
	sources := map[string][]corev1.KeyToPath{}
	if volume.ConfigMap != nil {
		sources[volume.ConfigMap.Name] = volume.ConfigMap.Items
	}
	if volume.Projected != nil {
		for _, s := range volume.Projected.Sources {
			if s.ConfigMap != nil {
				sources[s.ConfigMap.Name] = s.ConfigMap.Items
			}
		}
	}
	for name, items := range sources {
		for _, item := range items {
			if item.Path == file {
				return name, item.Key, true
			}
		}
	}
	for name, items := range sources {
		if len(items) == 0 && len(sources) == 1 {
			return name, file, true
		}
	}
	return "", "", false
}
