package bundle

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// installStrategy: Deployments that find their pods.
func installStrategy(b *Bundle) []string {
	install := b.CSV.Spec.Install
	wrong := violation(install.Strategy != "deployment", "install.strategy is %q, want deployment", install.Strategy)
	wrong = append(wrong, violation(len(install.Spec.Deployments) == 0, "there is no Deployment")...)
	seen := map[string]bool{}
	for _, d := range install.Spec.Deployments {
		wrong = append(wrong, violation(d.Name == "" || seen[d.Name], "the Deployment %q has no name of its own", d.Name)...)
		seen[d.Name] = true
		selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
		wrong = append(wrong, violation(err != nil || selector.Empty() || !selector.Matches(labels.Set(d.Spec.Template.Labels)),
			"%s does not select its own pods: %v", d.Name, err)...)
	}
	return wrong
}

// containers are those of all Deployments.
func (b *Bundle) containers() (out []corev1.Container) {
	for _, d := range b.CSV.Spec.Install.Spec.Deployments {
		out = append(out, d.Spec.Template.Spec.InitContainers...)
		out = append(out, d.Spec.Template.Spec.Containers...)
	}
	return out
}

// requests: of CPU and memory, for each container.
func requests(b *Bundle) (wrong []string) {
	for _, c := range b.containers() {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			wrong = append(wrong, violation(c.Resources.Requests.Name(name, "").IsZero(), "the container %s requests no %s", c.Name, name)...)
		}
	}
	return wrong
}

// images are those that run, and where they are named.
func (b *Bundle) images() map[string]string {
	out := map[string]string{}
	for _, c := range b.containers() {
		out[c.Image] = "the container " + c.Name
		for _, e := range c.Env {
			if strings.HasPrefix(e.Name, "RELATED_IMAGE_") {
				out[e.Value] = "the variable " + e.Name
			}
		}
	}
	return out
}

// relatedImages: what runs, and nothing else, for those who mirror images.
func relatedImages(b *Bundle) (wrong []string) {
	images, related, named := b.images(), map[string]bool{}, map[string]bool{}
	for _, r := range b.CSV.Spec.RelatedImages {
		wrong = append(wrong, violation(images[r.Image] == "", "the related image %s is not used", r.Image)...)
		wrong = append(wrong, violation(r.Name == "" || named[r.Name] || related[r.Image], "the related image %s (%q) is there twice, or has no name", r.Image, r.Name)...)
		related[r.Image], named[r.Name] = true, true
	}
	for _, image := range sortedKeys(images) {
		wrong = append(wrong, violation(!related[image], "the image %s of %s is not related", image, images[image])...)
	}
	main := b.CSV.Annotations["containerImage"]
	return append(wrong, violation(!strings.HasPrefix(images[main], "the container"), "the annotation containerImage is %q, which no container runs", main)...)
}

// byTag and byDigest match names of images.
var (
	byTag    = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*(:[0-9]+)?(/[a-z0-9._-]+)+:[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)
	byDigest = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*(:[0-9]+)?(/[a-z0-9._-]+)+@sha256:[0-9a-f]{64}$`)
)

// imageNames: all by digest, or all by the tag of the version.
func imageNames(b *Bundle) (wrong []string) {
	digests := 0
	images := b.images()
	for _, image := range sortedKeys(images) {
		if byDigest.MatchString(image) {
			digests++
			continue
		}
		tagged := byTag.MatchString(image) && strings.HasSuffix(image, ":v"+b.CSV.Spec.Version)
		wrong = append(wrong, violation(!tagged,
			"the image %q of %s has neither a digest nor the tag v%s", image, images[image], b.CSV.Spec.Version)...)
	}
	return append(wrong, violation(digests > 0 && digests < len(images), "some images are named by digest, others by tag")...)
}

// rules are all permissions that the bundle gives, and to whom.
func (b *Bundle) rules() map[string][]rbacv1.PolicyRule {
	out := map[string][]rbacv1.PolicyRule{}
	spec := b.CSV.Spec.Install.Spec
	for _, p := range append(slices.Clone(spec.ClusterPermissions), spec.Permissions...) {
		who := kindAccount + " " + p.ServiceAccountName
		out[who] = append(out[who], p.Rules...)
	}
	for _, o := range b.Objects {
		if o.GetKind() == "ClusterRole" || o.GetKind() == "Role" {
			role := rbacv1.ClusterRole{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &role); err == nil {
				out[o.GetKind()+" "+o.GetName()] = role.Rules
			}
		}
	}
	return out
}

// allowed lists what in rules is of a resource and allows one of some verbs.
func (b *Bundle) allowed(group, resource string, verbs ...string) (out []string) {
	all := b.rules()
	for _, who := range sortedKeys(all) {
		for _, rule := range all[who] {
			if !has(rule.APIGroups, group) || !has(rule.Resources, resource) {
				continue
			}
			for _, verb := range verbs {
				out = append(out, violation(has(rule.Verbs, verb), "%s may %s %s.%s", who, verb, resource, group)...)
			}
		}
	}
	return out
}

// has reports whether a list of a rule holds something, or everything.
func has(list []string, what string) bool {
	return slices.Contains(list, what) || slices.Contains(list, "*")
}

// noCRDPermissions: CRDs are OLM's.
func noCRDPermissions(b *Bundle) []string {
	return b.allowed("apiextensions.k8s.io", "customresourcedefinitions", "create", "update", "patch", "delete")
}

// noBudgetPermissions: budgets can keep nodes from being drained.
func noBudgetPermissions(b *Bundle) []string {
	return b.allowed("policy", "poddisruptionbudgets", "create", "update", "patch")
}

// noSCCChanges: OpenShift's security context constraints may be used, and no more.
func noSCCChanges(b *Bundle) []string {
	return b.allowed("security.openshift.io", "securitycontextconstraints", "create", "update", "patch", "delete")
}

// noWildcardPermissions: who installs it sees what it may do.
func noWildcardPermissions(b *Bundle) (wrong []string) {
	all := b.rules()
	for _, who := range sortedKeys(all) {
		for _, rule := range all[who] {
			for field, list := range map[string][]string{"apiGroups": rule.APIGroups, "resources": rule.Resources, "verbs": rule.Verbs} {
				wrong = append(wrong, violation(slices.Contains(list, "*"), "%s has a rule with %s: *", who, field)...)
			}
		}
	}
	return wrong
}

// serviceAccounts: OLM makes those of the ClusterServiceVersion, and a Deployment
// runs as one of them.
func serviceAccounts(b *Bundle) (wrong []string) {
	made := map[string]bool{}
	spec := b.CSV.Spec.Install.Spec
	for kind, list := range map[string][]Permissions{"clusterPermissions": spec.ClusterPermissions, "permissions": spec.Permissions} {
		seen := map[string]bool{}
		for _, p := range list {
			wrong = append(wrong, violation(p.ServiceAccountName == "" || seen[p.ServiceAccountName] || len(p.Rules) == 0,
				"%s of %q are there twice, or are none", kind, p.ServiceAccountName)...)
			seen[p.ServiceAccountName], made[p.ServiceAccountName] = true, true
		}
	}
	for _, o := range b.Objects {
		wrong = append(wrong, violation(o.GetKind() == kindAccount && made[o.GetName()], "the ServiceAccount %s is made by OLM, and here besides", o.GetName())...)
	}
	for _, d := range spec.Deployments {
		wrong = append(wrong, violation(!made[d.Spec.Template.Spec.ServiceAccountName], "%s runs as %q, which has no permissions and is not made", d.Name, d.Spec.Template.Spec.ServiceAccountName)...)
	}
	return wrong
}

// disruptionBudgets: each lets nodes be drained.
func disruptionBudgets(b *Bundle) (wrong []string) {
	for name, o := range b.Objects {
		if o.GetKind() != "PodDisruptionBudget" {
			continue
		}
		budget := policyv1.PodDisruptionBudget{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &budget); err != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %v", name, err))
			continue
		}
		most, least := budget.Spec.MaxUnavailable, budget.Spec.MinAvailable
		wrong = append(wrong, violation(most != nil && (most.String() == "0" || most.String() == "0%"), "%s: maxUnavailable is %s", name, most)...)
		wrong = append(wrong, violation(least != nil && least.String() == "100%", "%s: minAvailable is 100%%", name)...)
		if least == nil || least.Type != intstr.Int {
			continue
		}
		for _, d := range b.CSV.Spec.Install.Spec.Deployments {
			selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
			all := ptr.Deref(d.Spec.Replicas, 1)
			wrong = append(wrong, violation(err == nil && selector.Matches(labels.Set(d.Spec.Template.Labels)) && least.IntVal >= all,
				"%s: minAvailable is %d, of %d pods", name, least.IntVal, all)...)
		}
	}
	return wrong
}

// noWebhooks: OLM v1 installs none, and a proxy must not depend on a Service.
func noWebhooks(b *Bundle) []string {
	apis := b.CSV.Spec.APIServices
	return append(violation(len(b.CSV.Spec.WebhookDefinitions) > 0, "there are webhookdefinitions"),
		violation(len(apis.Owned)+len(apis.Required) > 0, "there are apiservicedefinitions")...)
}
