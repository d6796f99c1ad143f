package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	semver "k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/yaml"
)

// packageName is nodeproxy's name in catalogs.
const packageName = "nodeproxy"

// header begins every file.
const header = "# Written by make bundle; a change by hand is lost.\n"

// input is the source of a bundle.
type input struct {
	objects, examples []*unstructured.Unstructured
	icon, scorecard   []byte
	version
}

// generate returns the files of a bundle by their paths.
func generate(in input) (map[string][]byte, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	sorted, err := sort(in.objects)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(in.examples, func(a, b *unstructured.Unstructured) int { return cmp.Compare(a.GetKind(), b.GetKind()) })
	csv, err := sorted.clusterServiceVersion(in)
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{
		"bundle.Dockerfile":                  dockerfile(in.channel),
		"bundle/tests/scorecard/config.yaml": append([]byte(header), in.scorecard...),
	}
	var errs []error
	put := func(path string, object any) {
		text, err := yaml.Marshal(object)
		if _, found := out[path]; found {
			err = fmt.Errorf("%s would be written twice", path)
		}
		errs = append(errs, err)
		out[path] = append([]byte(header), text...)
	}
	put("bundle/metadata/annotations.yaml", map[string]any{"annotations": annotations(in.channel)})
	put("bundle/manifests/"+packageName+".clusterserviceversion.yaml", csv)
	for _, c := range sorted.crds {
		put(fmt.Sprintf("bundle/manifests/%s_%s.yaml", c.read.Spec.Group, c.read.Spec.Names.Plural), c.Object)
	}
	for _, o := range sorted.beside {
		o = o.DeepCopy()
		o.SetNamespace("") // the operator's own
		put(fmt.Sprintf("bundle/manifests/%s_%s.yaml", o.GetName(), strings.ToLower(o.GetKind())), o.Object)
	}
	return out, errors.Join(errs...)
}

// check rejects input that would make an unusable bundle.
func (in *input) check() error {
	var errs []error
	for name, release := range map[string]string{"-release": in.release, "-replaces": in.replaces} {
		if !isRelease(release) && (name == "-release" || release != "") {
			errs = append(errs, fmt.Errorf("%s is %q, which is not a version like 0.1.0", name, release))
		}
	}
	for name, value := range map[string]string{"-channel": in.channel, "-controller-image": in.controllerImage, "-agent-image": in.agentImage} {
		if value == "" || strings.ContainsAny(value, " \t\n") {
			errs = append(errs, fmt.Errorf("%s is %q; one name was expected", name, value))
		}
	}
	kinds := map[string]bool{}
	for _, o := range in.examples {
		if kinds[o.GetKind()] {
			errs = append(errs, fmt.Errorf("there are two examples of %s: the console shows one", o.GetKind()))
		}
		kinds[o.GetKind()] = true
	}
	return errors.Join(errs...)
}

// isRelease reports whether a text is a version as OLM orders them: without a v before
// it, and without build metadata, which have no order.
func isRelease(text string) bool {
	v, err := semver.ParseSemantic(text)
	return err == nil && v.BuildMetadata() == "" && v.String() == text
}

// annotations describe a bundle, in its metadata and as labels of its image.
func annotations(channel string) map[string]string {
	const bundle, test = "operators.operatorframework.io.bundle.", "operators.operatorframework.io.test."
	return map[string]string{
		bundle + "mediatype.v1":       "registry+v1",
		bundle + "manifests.v1":       "manifests/",
		bundle + "metadata.v1":        "metadata/",
		bundle + "package.v1":         packageName,
		bundle + "channels.v1":        channel,
		bundle + "channel.default.v1": channel,
		test + "mediatype.v1":         "scorecard+v1",
		test + "config.v1":            "tests/scorecard/",
	}
}

// dockerfile returns the Dockerfile of the bundle's image, which only has data.
func dockerfile(channel string) []byte {
	var out bytes.Buffer
	out.WriteString(header + "FROM scratch\n\n")
	all := annotations(channel)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&out, "LABEL %s=%s\n", key, all[key])
	}
	out.WriteString(`
COPY bundle/manifests /manifests/
COPY bundle/metadata /metadata/
COPY bundle/tests/scorecard /tests/scorecard/
`)
	return out.Bytes()
}
