package bundle

import (
	"bytes"
	"crypto/sha256"
	"maps"
	"slices"
	"strings"
	"testing"
)

// Files that are edited.
const (
	csvFile    = ManifestsDirectory + "/nodeproxy.clusterserviceversion.yaml"
	policyFile = ManifestsDirectory + "/nodeproxy.io_nodeproxypolicies.yaml"
	budgetFile = ManifestsDirectory + "/nodeproxy-controller_poddisruptionbudget.yaml"
	newFile    = ManifestsDirectory + "/new.yaml"
)

// edit breaks a rule.
type edit struct {
	rule, name string
	file       string
	old, text  string // old "" stands for the whole file
	want       string // what the rule reports
}

// apply returns the files of a bundle with the edit. VERSION and CHANNEL in it stand
// for those of the bundle.
func (e edit) apply(t *testing.T, b *Bundle) map[string][]byte {
	t.Helper()
	of := strings.NewReplacer("VERSION", b.CSV.Spec.Version, "CHANNEL", b.Annotations[keyChannels])
	e.old, e.text = of.Replace(e.old), of.Replace(e.text)
	out := maps.Clone(b.Files)
	switch {
	case e.old == "" && e.text == "":
		delete(out, e.file)
	case e.old == "":
		out[e.file] = []byte(e.text)
	case !bytes.Contains(out[e.file], []byte(e.old)):
		t.Fatalf("%s does not hold %q", e.file, e.old)
	default:
		out[e.file] = bytes.Replace(out[e.file], []byte(e.old), []byte(e.text), 1)
	}
	return out
}

// object is a small one of a kind.
func object(apiVersion, kind, name, more string) string {
	return "apiVersion: " + apiVersion + "\nkind: " + kind + "\nmetadata:\n  name: " + name + "\n" + more
}

// role is a ClusterRole with one rule.
func role(group, resource, verb string) string {
	return object("rbac.authorization.k8s.io/v1", "ClusterRole", "new",
		"rules:\n- apiGroups: ['"+group+"']\n  resources: ['"+resource+"']\n  verbs: ['"+verb+"']\n")
}

// noise is text that cannot be compressed to less than half.
func noise(size int) string {
	var out strings.Builder
	sum := sha256.Sum256(nil)
	for out.Len() < size {
		sum = sha256.Sum256(sum[:])
		for _, c := range sum {
			out.WriteByte('a' + c%26)
		}
	}
	return out.String()
}

func edits() []edit {
	return slices.Concat(editsOfPackage(), editsOfTexts(), editsOfKinds(), editsOfInstall())
}

func editsOfPackage() []edit {
	return []edit{
		{"layout", "another file", "bundle/README.md", "", "text", "does not belong here"},
		{"layout", "no scorecard", scorecardFile, "", "", "config.yaml is missing"},
		{"layout", "two objects in a file", newFile, "", "# first\n---\n" + object("v1", "Secret", "new", ""), "more than one object"},
		{"layout", "two versions", newFile, "", object("operators.coreos.com/v1alpha1", "ClusterServiceVersion", "nodeproxy.vVERSION", ""), "2 ClusterServiceVersions"},
		{"kinds", "DaemonSet", newFile, "", object("apps/v1", "DaemonSet", "new", ""), "OLM does not take DaemonSet"},
		{"kinds", "Namespace", newFile, "", object("v1", "Namespace", "new", ""), "OLM does not take Namespace"},
		{"kinds", "ValidatingAdmissionPolicy", newFile, "", object("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", "new", ""), "OLM does not take"},
		{"kinds", "version that is gone", budgetFile, "apiVersion: policy/v1\n", "apiVersion: policy/v1beta1\n", "want policy/v1"},
		{"unique-names", "twice", newFile, "", object("rbac.authorization.k8s.io/v1", "ClusterRole", "nodeproxy-viewer", ""), "ClusterRole nodeproxy-viewer is in"},
		{"namespaces", "named", budgetFile, "metadata:\n", "metadata:\n  namespace: nodeproxy-system\n", "names the namespace nodeproxy-system"},
		{"size", "too large", newFile, "", object("v1", "Secret", "new", "stringData:\n  a: "+noise(3<<20)+"\n"), "must have less than"},
		{"metadata", "format", metadataFile, "registry+v1", "helm", `want "registry+v1"`},
		{"metadata", "directory", metadataFile, "metadata.v1: metadata/", "metadata.v1: other/", `want "metadata/"`},
		{"metadata", "no package", metadataFile, "package.v1: nodeproxy", `package.v1: ""`, "package.v1 is missing"},
		{"dockerfile-labels", "channel", Dockerfile, "channels.v1=", "channels.v1=stable,", "as a label of the image"},
		{"dockerfile-labels", "lacking", Dockerfile, "LABEL operators.operatorframework.io.test.config.v1=tests/scorecard/\n", "", "as a label of the image"},
		{"dockerfile-labels", "more in the metadata", metadataFile, "annotations:\n", "annotations:\n  more: than\n", "more:"},
		{"dockerfile-labels", "directory", Dockerfile, "COPY bundle/metadata /metadata/\n", "", "the image lacks metadata/"},
		{"channels", "name", metadataFile, "channels.v1: CHANNEL", "channels.v1: alpha", `"alpha" begins neither`},
		{"channels", "default", metadataFile, "default.v1: CHANNEL", "default.v1: other", `default channel "other" is none of`},
		{"scorecard", "elsewhere", metadataFile, "tests/scorecard/", "tests/other/", "is a  of "},
		{"scorecard", "other kind", scorecardFile, "kind: Configuration", "kind: Other", "is a Other"},
		{"scorecard", "no suite", scorecardFile, "suite: basic", "suite: other", "no tests of the suite basic"},
		{"scorecard", "no entrypoint", scorecardFile, "entrypoint: [scorecard-test, basic-check-spec]", "entrypoint: []", "lacks entrypoint"},
		{"no-dependencies", "file", "bundle/metadata/dependencies.yaml", "", "dependencies: []", "there are dependencies.yaml"},
		{"no-dependencies", "annotation", csvFile, "    categories:", "    olm.properties: '[]'\n    categories:", "olm.properties"},
		{"no-dependencies", "required", csvFile, "  customresourcedefinitions:\n", "  customresourcedefinitions:\n    required: []\n", "kinds of others"},
	}
}

func editsOfTexts() []edit {
	return []edit{
		{"csv-name", "without v", csvFile, "name: nodeproxy.vVERSION", "name: nodeproxy.0.1.0", `want "nodeproxy.v`},
		{"csv-name", "other version", csvFile, "  version: VERSION", "  version: 9.2.0", `want "nodeproxy.v9.2.0"`},
		{"csv-name", "upper case", csvFile, "name: nodeproxy.vVERSION", "name: Nodeproxy.vVERSION", "metadata.name:"},
		{"version", "two numbers", csvFile, "  version: VERSION", `  version: "0.1"`, "which is no version"},
		{"version", "nothing", csvFile, "  version: VERSION", "  version: 0.0.0", "which is no version"},
		{"replaces", "itself", csvFile, "  version: VERSION", "  replaces: nodeproxy.vVERSION\n  version: VERSION", "no version before"},
		{"replaces", "another package", csvFile, "  version: VERSION", "  replaces: other.v0.0.1\n  version: VERSION", "no version before"},
		{"replaces", "by no version", csvFile, "  version: VERSION", "  replaces: nodeproxy.v0.0.1\n  version: '0.1'", "no version before"},
		{"display-name", "empty", csvFile, "  displayName: nodeproxy\n", "", "missing"},
		{"description", "short", csvFile, "  description: |", "  description: short\n  ignored: |", "has 5 characters"},
		{"description", "no line", csvFile, "    description: Replaces", "    ignored: Proxies", "has 0 characters"},
		{"description", "long line", csvFile, "    description: Replaces", "    description: Proxies " + strings.Repeat("very ", 30), "may have 1 to 135"},
		{"icon", "none", csvFile, "  icon:\n", "  ignored:\n", "0 icons"},
		{"icon", "not base64", csvFile, "base64data: ", "base64data: '*'\n    ignored: ", "not base64"},
		{"icon", "not SVG", csvFile, "base64data: ", "base64data: PHA+PC9wPg==\n    ignored: ", "no SVG"},
		{"icon", "not PNG", csvFile, "mediatype: image/svg+xml", "mediatype: image/png", "no PNG"},
		{"icon", "type", csvFile, "mediatype: image/svg+xml", "mediatype: text/plain", "of type"},
		{"provider", "no name", csvFile, "  provider:\n    name: nodeproxy", "  provider:\n    name: ''", "spec.provider"},
		{"provider", "no URL", csvFile, "    url: https://github.com/nodeproxy-io\n", "    url: nodeproxy\n", "spec.provider"},
		{"maintainers", "none", csvFile, "  maintainers:\n", "  ignored:\n", "missing"},
		{"maintainers", "no address", csvFile, "maintainers@nodeproxy.io", "maintainers", "spec.maintainers has"},
		{"links", "none", csvFile, "  links:\n", "  ignored:\n", "missing"},
		{"links", "no URL", csvFile, "    url: https://github.com/nodeproxy-io/nodeproxy/tree/main/docs", "    url: docs", "spec.links has"},
		{"keywords", "none", csvFile, "  keywords:\n", "  ignored:\n", "spec.keywords"},
		{"maturity", "unknown", csvFile, "maturity: alpha", "maturity: young", "which is none of"},
		{"min-kube-version", "two numbers", csvFile, "minKubeVersion: 1.31.0", `minKubeVersion: "1.31"`, "spec.minKubeVersion"},
		{"min-kube-version", "none", csvFile, "  minKubeVersion: 1.31.0\n", "", "spec.minKubeVersion"},
		{"install-modes", "one namespace", csvFile, "  - supported: false\n    type: OwnNamespace", "  - supported: true\n    type: OwnNamespace", "OwnNamespace: supported is true"},
		{"install-modes", "not the cluster", csvFile, "  - supported: true\n    type: AllNamespaces", "  - supported: false\n    type: AllNamespaces", "AllNamespaces: supported is false"},
		{"install-modes", "lacking", csvFile, "  - supported: false\n    type: MultiNamespace\n", "", "MultiNamespace is there 0 times"},
		{"capabilities", "unknown", csvFile, "capabilities: Seamless Upgrades", "capabilities: Everything", "which is none of"},
		{"categories", "unknown", csvFile, "categories: Networking", "categories: Networking,Proxies", `"Proxies"`},
		{"annotations", "no repository", csvFile, "repository: https://", "repository: git@", "want a URL"},
		{"annotations", "no support", csvFile, "    support: The", "    ignored: The", "support is missing"},
		{"annotations", "certified", csvFile, `certified: "false"`, `certified: "no"`, "want true or false"},
		{"features", "lacking", csvFile, "features.operators.openshift.io/tls-profiles", "ignored", "tls-profiles is missing"},
		{"features", "neither", csvFile, `io/fips-compliant: "false"`, `io/fips-compliant: "no"`, `is "no"`},
		{"features", "unknown", csvFile, "io/cnf:", "io/unknown:", "io/unknown"},
		{"platforms", "none", csvFile, "operatorframework.io/arch.", "ignored.io/arch.", "there are no labels"},
		{"platforms", "value", csvFile, "arch.amd64: supported", `arch.amd64: "yes"`, "want supported"},
		{"no-creation-time", "one", csvFile, "    categories:", "    createdAt: '2026-01-01T00:00:00Z'\n    categories:", "changes by itself"},
		{"suggested-namespace", "other name", csvFile, "suggested-namespace: nodeproxy-system", "suggested-namespace: other", `is "other"`},
		{"suggested-namespace", "level", csvFile, `enforce": "privileged"`, `enforce": "baseline"`, `"baseline"`},
		{"suggested-namespace", "not JSON", csvFile, "suggested-namespace-template: |-", "suggested-namespace-template: '{'\n    ignored: |-", "not JSON"},
	}
}

func editsOfKinds() []edit {
	const webhook = "  conversion:\n    strategy: Webhook\n    webhook: {conversionReviewVersions: [v1]}\n  scope: Cluster"
	return []edit{
		{"crds", "webhook", policyFile, "  scope: Cluster", webhook, "by a webhook"},
		{"crds", "stored nowhere", policyFile, "    storage: true", "    storage: false", "0 versions are stored"},
		{"crds", "unknown fields", policyFile, "  scope: Cluster", "  preserveUnknownFields: true\n  scope: Cluster", "unknown fields"},
		{"crds", "name", policyFile, "  name: nodeproxypolicies.nodeproxy.io", "  name: policies.nodeproxy.io", "not that of its kind"},
		{"crds", "no schema", policyFile, "  versions:\n", "  versions:\n  - {name: v1alpha1, served: true, storage: false}\n", "no schema with a description"},
		{"examples", "no schema", policyFile, "  versions:\n", "  versions:\n  - {name: v1alpha1, served: true, storage: false}\n", "no schema to check"},
		{"crds", "no description", policyFile, "      openAPIV3Schema:\n        description: |-", "      openAPIV3Schema:\n        title: |-", "no schema with a description"},
		{"owned-crds", "CRD lacking", policyFile, "", "", "has no CRD here"},
		{"owned-crds", "another version", policyFile, "    name: v1alpha1\n", "    name: v1beta1\n", "and is not owned"},
		{"owned-crds", "another kind", csvFile, "      kind: NodeProxyPolicy\n", "      kind: NodePolicy\n", "has no CRD here"},
		{"owned-descriptions", "no description", csvFile, "      displayName: Node Proxy Policy\n", "", "no displayName"},
		{"owned-descriptions", "no resources", csvFile, "      resources:\n", "      ignored:\n", "has no resources"},
		{"owned-descriptions", "no version", csvFile, "        name: nodeproxy-agent\n        version: v1\n", "        name: nodeproxy-agent\n", "no kind or version"},
		{"descriptors", "field lacking", csvFile, "        path: agent.image\n", "        path: agent.picture\n", "agent.image is not described"},
		{"descriptors", "no such field", csvFile, "        path: agent.image\n", "        path: agent.picture\n", "there is no such field"},
		{"descriptors", "empty", csvFile, "      - description: image is the agent's container image.\n", "      - description: ''\n", "has no displayName or description"},
		{"descriptors", "new field", policyFile, "              priority:\n", "              fresh:\n                type: string\n              priority:\n", "fresh is not described"},
		{"descriptors", "status", csvFile, "        path: conditions\n", "        path: agent\n", "status.conditions is not described"},
		{"internal-objects", "shown", csvFile, `        "nodeproxyrules.nodeproxy.io",` + "\n", "", "NodeProxyRules is to be hidden"},
		{"internal-objects", "of others", csvFile, `        "nodeproxyrules.nodeproxy.io",`, `        "nodeproxyrules.nodeproxy.io", "pods",`, "pods is hidden, and not owned"},
		{"examples", "not JSON", csvFile, "alm-examples: |-\n      [", "alm-examples: |-\n      {", "not JSON"},
		{"examples", "unknown field", csvFile, `"enforcement": "Audit"`, `"enforcment": "Audit"`, "enforcment"},
		{"examples", "a rule of the schema", csvFile, `"2001:db8:51::/48"`, `"2001:db8:51::/480"`, "loadBalancerSourceRanges"},
		{"examples", "twice", csvFile, `"kind": "NodeProxyPolicy",`, `"kind": "NodeProxy",`, "several examples of NodeProxy"},
		{"examples", "not owned", csvFile, `"kind": "NodeProxyPolicy",`, `"kind": "Pod",`, "of no owned kind"},
		{"example-in-audit", "writing", csvFile, `"enforcement": "Audit"`, `"enforcement": "Enforce"`, `enforcement "Enforce"`},
		{"example-in-audit", "lacking", csvFile, `"kind": "NodeProxy",`, `"kind": "Other",`, "no example of NodeProxy"},
	}
}

func editsOfInstall() []edit {
	const agents = "        serviceAccountName: nodeproxy-agent\n"
	digest := "nodeproxy.io/nodeproxy-controller@sha256:" + strings.Repeat("a", 64)
	return []edit{
		{"install-strategy", "other", csvFile, "    strategy: deployment\n", "    strategy: other\n", `is "other"`},
		{"install-strategy", "unnamed", csvFile, "        name: nodeproxy-controller\n        spec:\n", "        name: ''\n        spec:\n", `the Deployment "" has no name of its own`},
		{"install-strategy", "none", csvFile, "      deployments:\n", "      ignored:\n", "no Deployment"},
		{"install-strategy", "selector", csvFile, "            matchLabels:\n              app.kubernetes.io/name: nodeproxy-controller\n          strategy",
			"            matchLabels:\n              app.kubernetes.io/name: other\n          strategy", "does not select its own pods"},
		{"requests", "memory", csvFile, "                  memory: 128Mi\n", "", "requests no memory"},
		{"requests", "CPU", csvFile, "                  cpu: 100m\n", "", "requests no cpu"},
		{"related-images", "lacking", csvFile, "  - image: nodeproxy.io/nodeproxy-agent:vVERSION\n    name: nodeproxy-agent\n", "", "RELATED_IMAGE_AGENT is not related"},
		{"related-images", "unused", csvFile, "  relatedImages:\n", "  relatedImages:\n  - {name: other, image: nodeproxy.io/other:v1.0.0}\n", "is not used"},
		{"related-images", "other container", csvFile, "    containerImage: nodeproxy.io/nodeproxy-controller", "    containerImage: nodeproxy.io/nodeproxy-agent", "which no container runs"},
		{"image-names", "other version", csvFile, ":vVERSION\n                imagePullPolicy", ":v0.0.9\n                imagePullPolicy", "neither a digest nor the tag"},
		{"image-names", "mixed", csvFile, "nodeproxy.io/nodeproxy-controller:vVERSION\n                imagePullPolicy", digest + "\n                imagePullPolicy", "some images are named by digest"},
		{"service-accounts", "made twice", newFile, "", object("v1", "ServiceAccount", "nodeproxy-agent", ""), "here besides"},
		{"service-accounts", "not made", csvFile, "              serviceAccountName: nodeproxy-controller\n", "              serviceAccountName: other\n", "runs as \"other\""},
		{"service-accounts", "two entries", csvFile, agents, "        serviceAccountName: nodeproxy-controller\n", "are there twice"},
		{"no-crd-permissions", "create", newFile, "", role("apiextensions.k8s.io", "customresourcedefinitions", "create"), "ClusterRole new may create"},
		{"no-crd-permissions", "everything", newFile, "", role("*", "*", "*"), "ClusterRole new may create"},
		{"no-crd-permissions", "in the version", csvFile, "          - customresourcedefinitions\n          verbs:\n", "          - customresourcedefinitions\n          verbs:\n          - update\n", "nodeproxy-controller may update"},
		{"no-budget-permissions", "patch", newFile, "", role("policy", "poddisruptionbudgets", "patch"), "may patch"},
		{"no-scc-changes", "update", newFile, "", role("security.openshift.io", "securitycontextconstraints", "update"), "may update"},
		{"no-wildcard-permissions", "verbs", newFile, "", role("", "pods", "*"), "verbs: *"},
		{"disruption-budgets", "none", budgetFile, "maxUnavailable: 1", "maxUnavailable: 0", "maxUnavailable is 0"},
		{"disruption-budgets", "all", budgetFile, "maxUnavailable: 1", "minAvailable: 100%", "minAvailable is 100%"},
		{"disruption-budgets", "all by number", budgetFile, "maxUnavailable: 1", "minAvailable: 2", "minAvailable is 2, of 2 pods"},
		{"no-webhooks", "one", csvFile, "  version: VERSION", "  version: VERSION\n  webhookdefinitions: [{}]", "webhookdefinitions"},
		{"no-webhooks", "API service", csvFile, "  version: VERSION", "  version: VERSION\n  apiservicedefinitions: {owned: [{}]}", "apiservicedefinitions"},
	}
}
