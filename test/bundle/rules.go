package bundle

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Rule is one that a bundle keeps, or breaks.
type Rule struct {
	// Name is that of its subtest, and in docs/olm.md.
	Name string
	// Check returns violations as human-readable text; nothing if there are none.
	Check func(b *Bundle) []string
}

// Rules are all of them.
func Rules() []Rule {
	return []Rule{
		{"layout", layout}, {"kinds", kinds}, {"unique-names", uniqueNames}, {"namespaces", namespaces}, {"size", size},
		{"metadata", metadata}, {"dockerfile-labels", dockerfileLabels}, {"channels", channels}, {"scorecard", scorecard},

		{"csv-name", csvName}, {"version", version}, {"replaces", replaces}, {"display-name", displayName},
		{"description", description}, {"icon", icon}, {"provider", provider}, {"maintainers", maintainers},
		{"links", links}, {"keywords", keywords}, {"maturity", maturity}, {"min-kube-version", minKubeVersion},
		{"install-modes", installModes}, {"capabilities", capabilities}, {"categories", categories},
		{"annotations", annotations}, {"features", features}, {"platforms", platforms}, {"no-creation-time", noCreationTime},
		{"suggested-namespace", suggestedNamespace},

		{"crds", crds}, {"owned-crds", ownedCRDs}, {"owned-descriptions", ownedDescriptions}, {"descriptors", descriptors},
		{"internal-objects", internalObjects}, {"examples", examples}, {"example-in-audit", exampleInAudit},

		{"install-strategy", installStrategy}, {"requests", requests}, {"related-images", relatedImages},
		{"image-names", imageNames}, {"service-accounts", serviceAccounts}, {"no-crd-permissions", noCRDPermissions},
		{"no-budget-permissions", noBudgetPermissions}, {"no-scc-changes", noSCCChanges}, {"no-wildcard-permissions", noWildcardPermissions},
		{"disruption-budgets", disruptionBudgets}, {"no-webhooks", noWebhooks}, {"no-dependencies", noDependencies},
	}
}

// taken are the kinds of the format registry+v1 that OLM takes, with the version of
// each that API servers serve, and whether it is in a namespace. Of those that only
// some clusters have, the rules here want none.
var taken = map[string]struct {
	version    string
	namespaced bool
}{
	kindCSV:               {"operators.coreos.com/v1alpha1", true},
	kindCRD:               {"apiextensions.k8s.io/v1", false},
	"ClusterRole":         {"rbac.authorization.k8s.io/v1", false},
	"ClusterRoleBinding":  {"rbac.authorization.k8s.io/v1", false},
	"Role":                {"rbac.authorization.k8s.io/v1", true},
	"RoleBinding":         {"rbac.authorization.k8s.io/v1", true},
	kindAccount:           {"v1", true},
	"Service":             {"v1", true},
	"Secret":              {"v1", true},
	"ConfigMap":           {"v1", true},
	"PodDisruptionBudget": {"policy/v1", true},
	"PriorityClass":       {"scheduling.k8s.io/v1", false},
}

// layout: manifests, metadata and what scorecard runs, and nothing else.
func layout(b *Bundle) (wrong []string) {
	versions := 0
	for name, text := range b.Files {
		directory := Directory(name)
		switch {
		case name == Dockerfile || name == metadataFile || name == scorecardFile:
		case directory == "manifests" && path.Ext(name) == ".yaml":
			if o := b.Objects[name]; o != nil && o.GetKind() == kindCSV {
				versions++
			}
			if strings.Contains(string(text), "\n---") {
				wrong = append(wrong, name+" holds more than one object")
			}
		default:
			wrong = append(wrong, name+" does not belong here")
		}
	}
	for _, name := range []string{Dockerfile, metadataFile, scorecardFile} {
		if len(b.Files[name]) == 0 {
			wrong = append(wrong, name+" is missing")
		}
	}
	if versions != 1 {
		wrong = append(wrong, fmt.Sprintf("%d ClusterServiceVersions, want one", versions))
	}
	return wrong
}

// kinds: only those that OLM takes, in versions that API servers serve.
func kinds(b *Bundle) (wrong []string) {
	for name, o := range b.Objects {
		kind, found := taken[o.GetKind()]
		if !found {
			wrong = append(wrong, fmt.Sprintf("%s: OLM does not take %s", name, o.GetKind()))
		} else if kind.version != o.GetAPIVersion() {
			wrong = append(wrong, fmt.Sprintf("%s: %s has apiVersion %s, want %s", name, o.GetKind(), o.GetAPIVersion(), kind.version))
		}
	}
	return wrong
}

// uniqueNames: no two objects of a kind have one name.
func uniqueNames(b *Bundle) (wrong []string) {
	seen := map[string]string{}
	for _, name := range sortedKeys(b.Objects) {
		o := b.Objects[name]
		key := o.GetKind() + " " + o.GetName()
		if other := seen[key]; other != "" {
			wrong = append(wrong, fmt.Sprintf("%s is in %s and in %s", key, other, name))
		}
		seen[key] = name
	}
	return wrong
}

// namespaces: objects are made in the operator's, so none names one.
func namespaces(b *Bundle) (wrong []string) {
	for name, o := range b.Objects {
		if o.GetNamespace() != "" {
			wrong = append(wrong, fmt.Sprintf("%s names the namespace %s", name, o.GetNamespace()))
		}
	}
	return wrong
}

// Keys of the metadata.
const (
	ofBundle          = "operators.operatorframework.io.bundle."
	ofTests           = "operators.operatorframework.io.test."
	keyPackage        = ofBundle + "package.v1"
	keyChannels       = ofBundle + "channels.v1"
	keyDefault        = ofBundle + "channel.default.v1"
	keyTestsDirectory = ofTests + "config.v1"
)

// metadata: what is in the bundle, and where.
func metadata(b *Bundle) (wrong []string) {
	for key, want := range map[string]string{
		ofBundle + "mediatype.v1": "registry+v1",
		ofBundle + "manifests.v1": "manifests/",
		ofBundle + "metadata.v1":  "metadata/",
		ofTests + "mediatype.v1":  "scorecard+v1",
		keyTestsDirectory:         "tests/scorecard/",
	} {
		if got := b.Annotations[key]; got != want {
			wrong = append(wrong, fmt.Sprintf("%s is %q, want %q", key, got, want))
		}
	}
	for _, key := range []string{keyPackage, keyChannels, keyDefault} {
		if b.Annotations[key] == "" {
			wrong = append(wrong, key+" is missing")
		}
	}
	return wrong
}

// dockerfileLabels: the image states the same as the metadata, and has all of it.
func dockerfileLabels(b *Bundle) (wrong []string) {
	keys := append(sortedKeys(b.Annotations), sortedKeys(b.Labels)...)
	slices.Sort(keys)
	for _, key := range slices.Compact(keys) {
		if b.Annotations[key] != b.Labels[key] {
			wrong = append(wrong, fmt.Sprintf("%s: %q in the metadata, %q as a label of the image", key, b.Annotations[key], b.Labels[key]))
		}
	}
	for _, directory := range []string{"manifests/", "metadata/", "tests/scorecard/"} {
		line := fmt.Sprintf("\nCOPY bundle/%s /%s\n", strings.TrimSuffix(directory, "/"), directory)
		if !strings.Contains(string(b.Files[Dockerfile]), line) {
			wrong = append(wrong, "the image lacks "+directory)
		}
	}
	return wrong
}

// channels: names as OLM recommends them, and the default is one of them.
func channels(b *Bundle) (wrong []string) {
	all := strings.Split(b.Annotations[keyChannels], ",")
	for _, channel := range all {
		if !slices.ContainsFunc([]string{"candidate", "fast", "stable"}, func(s string) bool { return strings.HasPrefix(channel, s) }) {
			wrong = append(wrong, fmt.Sprintf("the channel %q begins neither with candidate, fast nor stable", channel))
		}
	}
	if !slices.Contains(all, b.Annotations[keyDefault]) {
		wrong = append(wrong, fmt.Sprintf("the default channel %q is none of %q", b.Annotations[keyDefault], all))
	}
	return wrong
}
