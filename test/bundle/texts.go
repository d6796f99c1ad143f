package bundle

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"image"
	_ "image/png" // icons
	"net/mail"
	"net/url"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	semver "k8s.io/apimachinery/pkg/util/version"
)

// violation is a list of one, or of nothing.
func violation(wrong bool, format string, args ...any) []string {
	if !wrong {
		return nil
	}
	return []string{fmt.Sprintf(format, args...)}
}

// csvName: the package, and the version after a v.
func csvName(b *Bundle) []string {
	want := b.Annotations[keyPackage] + ".v" + b.CSV.Spec.Version
	out := violation(b.CSV.Name != want, "metadata.name is %q, want %q", b.CSV.Name, want)
	for _, text := range validation.IsDNS1123Subdomain(b.CSV.Name) {
		out = append(out, "metadata.name: "+text)
	}
	return out
}

// version: as semver has it, and not that of nothing.
func version(b *Bundle) []string {
	_, err := semver.ParseSemantic(b.CSV.Spec.Version)
	return violation(err != nil || b.CSV.Spec.Version == "0.0.0", "spec.version is %q, which is no version: %v", b.CSV.Spec.Version, err)
}

// replaces: if anything, an older version of this package.
func replaces(b *Bundle) []string {
	if b.CSV.Spec.Replaces == "" {
		return nil
	}
	former, found := strings.CutPrefix(b.CSV.Spec.Replaces, b.Annotations[keyPackage]+".v")
	old, err := semver.ParseSemantic(former)
	present, presentErr := semver.ParseSemantic(b.CSV.Spec.Version)
	return violation(!found || err != nil || presentErr != nil || !old.LessThan(present), "spec.replaces is %q, which is no version before %s", b.CSV.Spec.Replaces, b.CSV.Spec.Version)
}

// displayName: there is one.
func displayName(b *Bundle) []string {
	return violation(strings.TrimSpace(b.CSV.Spec.DisplayName) == "", "spec.displayName is missing")
}

// description: a page for the console, and a line for lists.
func description(b *Bundle) []string {
	line := b.CSV.Annotations["description"]
	return append(violation(len(b.CSV.Spec.Description) < 500, "spec.description has %d characters: it is what people decide by", len(b.CSV.Spec.Description)),
		violation(line == "" || len(line) > 135, "the annotation description has %d characters, and may have 1 to 135", len(line))...)
}

// icon: one, which can be shown.
func icon(b *Bundle) []string {
	if len(b.CSV.Spec.Icon) != 1 {
		return violation(true, "%d icons, want one", len(b.CSV.Spec.Icon))
	}
	i := b.CSV.Spec.Icon[0]
	raw, err := base64.StdEncoding.DecodeString(i.Data)
	if err != nil || len(raw) == 0 {
		return violation(true, "the icon is not base64: %v", err)
	}
	switch i.MediaType {
	case "image/svg+xml":
		root := struct{ XMLName xml.Name }{}
		err := xml.Unmarshal(raw, &root)
		return violation(err != nil || root.XMLName.Local != "svg", "the icon is no SVG: %v", err)
	case "image/png":
		_, format, err := image.DecodeConfig(bytes.NewReader(raw))
		return violation(err != nil || format != "png", "the icon is no PNG: %v", err)
	}
	return violation(true, "the icon is of type %q; consoles show image/svg+xml and image/png", i.MediaType)
}

func isURL(text string) bool {
	u, err := url.ParseRequestURI(text)
	return err == nil && u.Scheme == "https" && u.Host != ""
}

// provider: a name, and where to find it.
func provider(b *Bundle) []string {
	p := b.CSV.Spec.Provider
	return violation(p.Name == "" || !isURL(p.URL), "spec.provider is %q, %q", p.Name, p.URL)
}

// maintainers: each with a name and an address.
func maintainers(b *Bundle) []string {
	out := violation(len(b.CSV.Spec.Maintainers) == 0, "spec.maintainers is missing")
	for _, m := range b.CSV.Spec.Maintainers {
		_, err := mail.ParseAddress(m.Email)
		out = append(out, violation(m.Name == "" || err != nil, "spec.maintainers has %q, %q: %v", m.Name, m.Email, err)...)
	}
	return out
}

// links: each with a name and a URL.
func links(b *Bundle) []string {
	out := violation(len(b.CSV.Spec.Links) == 0, "spec.links is missing")
	for _, l := range b.CSV.Spec.Links {
		out = append(out, violation(l.Name == "" || !isURL(l.URL), "spec.links has %q, %q", l.Name, l.URL)...)
	}
	return out
}

// keywords: there are some.
func keywords(b *Bundle) []string {
	return violation(len(b.CSV.Spec.Keywords) == 0 || slices.Contains(b.CSV.Spec.Keywords, ""), "spec.keywords is %q", b.CSV.Spec.Keywords)
}

// maturity: one that consoles know.
func maturity(b *Bundle) []string {
	known := []string{"planning", "pre-alpha", "alpha", "beta", "stable", "mature", "inactive", "deprecated"}
	return violation(!slices.Contains(known, b.CSV.Spec.Maturity), "spec.maturity is %q, which is none of %q", b.CSV.Spec.Maturity, known)
}

// minKubeVersion: three numbers.
func minKubeVersion(b *Bundle) []string {
	_, err := semver.ParseSemantic(b.CSV.Spec.MinKubeVersion)
	return violation(err != nil, "spec.minKubeVersion is %q: %v", b.CSV.Spec.MinKubeVersion, err)
}

// installModes: the whole cluster and nothing less, because a node has one proxy.
func installModes(b *Bundle) (wrong []string) {
	seen := map[string]int{}
	for _, m := range b.CSV.Spec.InstallModes {
		seen[m.Type]++
		wrong = append(wrong, violation(m.Supported != (m.Type == "AllNamespaces"), "install mode %s: supported is %t", m.Type, m.Supported)...)
	}
	for _, name := range []string{"OwnNamespace", "SingleNamespace", "MultiNamespace", "AllNamespaces"} {
		wrong = append(wrong, violation(seen[name] != 1, "install mode %s is there %d times", name, seen[name])...)
	}
	return wrong
}

// capabilities: a level that catalogs know.
func capabilities(b *Bundle) []string {
	known := []string{"Basic Install", "Seamless Upgrades", "Full Lifecycle", "Deep Insights", "Auto Pilot"}
	got := b.CSV.Annotations["capabilities"]
	return violation(!slices.Contains(known, got), "the annotation capabilities is %q, which is none of %q", got, known)
}

// categories: some that catalogs know.
func categories(b *Bundle) (wrong []string) {
	known := []string{
		"AI/Machine Learning", "Application Runtime", "Big Data", "Cloud Provider", "Database", "Developer Tools",
		"Development Tools", "Drivers and plugins", "Integration & Delivery", "Logging & Tracing", "Modernization & Migration",
		"Monitoring", "Networking", "Observability", "OpenShift Optional", "Security", "Storage", "Streaming & Messaging",
	}
	for category := range strings.SplitSeq(b.CSV.Annotations["categories"], ",") {
		category = strings.TrimSpace(category)
		wrong = append(wrong, violation(!slices.Contains(known, category), "the annotation categories has %q, which is none of %q", category, known)...)
	}
	return wrong
}

// annotations: what catalogs show besides.
func annotations(b *Bundle) []string {
	out := violation(!isURL(b.CSV.Annotations["repository"]), "the annotation repository is %q, want a URL", b.CSV.Annotations["repository"])
	out = append(out, violation(b.CSV.Annotations["support"] == "", "the annotation support is missing")...)
	certified := b.CSV.Annotations["certified"]
	return append(out, violation(certified != "true" && certified != "false", "the annotation certified is %q, want true or false", certified)...)
}

// features: OpenShift's, each answered.
func features(b *Bundle) (wrong []string) {
	const prefix = "features.operators.openshift.io/"
	required := []string{"disconnected", "fips-compliant", "proxy-aware", "tls-profiles", "token-auth-aws", "token-auth-azure", "token-auth-gcp"}
	optional := []string{"cnf", "cni", "csi"}
	for _, name := range required {
		wrong = append(wrong, violation(b.CSV.Annotations[prefix+name] == "", "%s%s is missing", prefix, name)...)
	}
	for key, value := range b.CSV.Annotations {
		name, found := strings.CutPrefix(key, prefix)
		if found && (value != "true" && value != "false" || !slices.Contains(append(optional, required...), name)) {
			wrong = append(wrong, fmt.Sprintf("%s is %q", key, value))
		}
	}
	return wrong
}

// platform matches the labels by which consoles show an operator for a cluster.
var platform = regexp.MustCompile(`^operatorframework\.io/(arch|os)\.[a-z0-9]+$`)

// platforms: the operating system and at least one processor.
func platforms(b *Bundle) []string {
	seen := map[string]bool{}
	var wrong []string
	for key, value := range b.CSV.Labels {
		if found := platform.FindStringSubmatch(key); found != nil {
			seen[found[1]] = true
			wrong = append(wrong, violation(value != "supported", "the label %s is %q, want supported", key, value)...)
		}
	}
	return append(wrong, violation(!seen["arch"] || !seen["os"], "there are no labels operatorframework.io/arch.… and os.…")...)
}

// noCreationTime: the same input makes the same bundle.
func noCreationTime(b *Bundle) []string {
	return violation(b.CSV.Annotations["createdAt"] != "", "the annotation createdAt changes by itself")
}

// suggestedNamespace: the console makes it, with the level of Pod Security that the
// node's network needs.
func suggestedNamespace(b *Bundle) []string {
	const key, level = "operatorframework.io/suggested-namespace", "pod-security.kubernetes.io/enforce"
	namespace := corev1.Namespace{}
	if err := json.Unmarshal([]byte(b.CSV.Annotations[key+"-template"]), &namespace); err != nil {
		return violation(true, "the annotation %s-template is not JSON: %v", key, err)
	}
	out := violation(namespace.Kind != "Namespace" || namespace.Name == "" || namespace.Name != b.CSV.Annotations[key],
		"%s is %q, its template a %s named %q", key, b.CSV.Annotations[key], namespace.Kind, namespace.Name)
	for _, d := range b.CSV.Spec.Install.Spec.Deployments {
		out = append(out, violation(d.Spec.Template.Spec.HostNetwork && namespace.Labels[level] != "privileged",
			"%s uses the node's network, and the template of the namespace has %s: %q", d.Name, level, namespace.Labels[level])...)
	}
	return out
}
