package bundle

import (
	"archive/tar"
	"compress/gzip"
	"fmt"
	"maps"
	"path"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// maxBytes is what a bundle may have compressed: it goes through a ConfigMap.
const maxBytes = 1 << 20

func sortedKeys[V any](of map[string]V) []string { return slices.Sorted(maps.Keys(of)) }

// counter counts what is written to it.
type counter int

// Write counts.
func (c *counter) Write(text []byte) (int, error) {
	*c += counter(len(text))
	return len(text), nil
}

// size: less than 1 MiB, compressed.
func size(b *Bundle) []string {
	var got counter
	zip := gzip.NewWriter(&got)
	archive := tar.NewWriter(zip)
	for _, name := range sortedKeys(b.Files) {
		header := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(b.Files[name]))}
		if err := archive.WriteHeader(header); err != nil {
			return []string{err.Error()}
		}
		if _, err := archive.Write(b.Files[name]); err != nil {
			return []string{err.Error()}
		}
	}
	if err := archive.Close(); err != nil {
		return []string{err.Error()}
	}
	if err := zip.Close(); err != nil {
		return []string{err.Error()}
	}
	if got >= maxBytes {
		return []string{fmt.Sprintf("it has %d bytes compressed, and must have less than %d", got, maxBytes)}
	}
	return nil
}

// scorecard: there are tests, in the directory that the metadata name.
func scorecard(b *Bundle) (wrong []string) {
	config := struct {
		APIVersion, Kind string
		Stages           []struct {
			Tests []struct {
				Entrypoint []string
				Image      string
				Labels     map[string]string
			}
		}
	}{}
	file := path.Join("bundle", b.Annotations[keyTestsDirectory], "config.yaml")
	if err := yaml.Unmarshal(b.Files[file], &config); err != nil {
		return []string{err.Error()}
	}
	if config.APIVersion != "scorecard.operatorframework.io/v1alpha3" || config.Kind != "Configuration" {
		wrong = append(wrong, fmt.Sprintf("%s is a %s of %s", file, config.Kind, config.APIVersion))
	}
	suites := map[string]bool{}
	for _, stage := range config.Stages {
		for _, test := range stage.Tests {
			suites[test.Labels["suite"]] = true
			if len(test.Entrypoint) == 0 || test.Image == "" || test.Labels["test"] == "" {
				wrong = append(wrong, fmt.Sprintf("the test %v lacks entrypoint, image or the label test", test.Labels))
			}
		}
	}
	for _, suite := range []string{"basic", "olm"} {
		if !suites[suite] {
			wrong = append(wrong, "there are no tests of the suite "+suite)
		}
	}
	return wrong
}

// noDependencies: OLM installs it as it is, its newer version (OLM v1) too.
func noDependencies(b *Bundle) (wrong []string) {
	for _, name := range []string{"dependencies.yaml", "properties.yaml"} {
		if _, found := b.Files["bundle/metadata/"+name]; found {
			wrong = append(wrong, "there are "+name)
		}
	}
	for _, key := range []string{"olm.properties", "operatorframework.io/properties"} {
		if _, found := b.CSV.Annotations[key]; found {
			wrong = append(wrong, "there is the annotation "+key)
		}
	}
	for _, o := range b.Objects {
		if o.GetKind() != kindCSV {
			continue
		}
		_, kinds, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", "customresourcedefinitions", "required")
		_, native, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", "nativeAPIs")
		wrong = append(wrong, violation(kinds || native, "the ClusterServiceVersion asks for kinds of others")...)
	}
	return wrong
}
