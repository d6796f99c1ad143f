package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/yaml"
)

// state is what a repository contains about its release.
type state struct {
	release     string // RELEASE of the Makefile
	changelog   string
	bundle      string            // the ClusterServiceVersion
	catalog     string            // the template
	chart       string            // Chart.yaml
	pages       map[string]string // on installation, for any version
	changedCRDs []string
	tags        []string // of this commit
	final       bool
}

// check returns a sentence for each contradiction.
func (s *state) check() []string {
	if _, err := version.ParseSemantic(s.release); err != nil {
		return []string{fmt.Sprintf("RELEASE of the Makefile is %q, which is not a version like 0.1.0.", s.release)}
	}
	out := slices.Concat(s.checkBundle(), s.checkChart(), s.checkCatalog(), s.checkChangelog(), s.checkPages())
	for _, tag := range s.tags {
		if tag != "v"+s.release {
			out = append(out, fmt.Sprintf("This commit has the tag %s, and RELEASE of the Makefile is %s.", tag, s.release))
		}
	}
	if s.isFinal() {
		for _, name := range s.changedCRDs {
			out = append(out, fmt.Sprintf("config/crd/released/%s is not that of config/crd/bases: copy it.", name))
		}
	}
	return out
}

// isFinal reports whether this commit is the release.
func (s *state) isFinal() bool { return s.final || len(s.tags) > 0 }

func (s *state) name() string { return "nodeproxy.v" + s.release }

func (s *state) checkBundle() []string {
	csv := struct {
		Metadata struct{ Name string }
		Spec     struct{ Version string }
	}{}
	if err := yaml.Unmarshal([]byte(s.bundle), &csv); err != nil {
		return []string{fmt.Sprintf("The bundle cannot be read: %v.", err)}
	}
	if csv.Metadata.Name != s.name() || csv.Spec.Version != s.release {
		return []string{fmt.Sprintf("The bundle is %s, version %s, and RELEASE of the Makefile is %s: run make bundle.", csv.Metadata.Name, csv.Spec.Version, s.release)}
	}
	return nil
}

func (s *state) checkChart() []string {
	chart := struct{ Version, AppVersion string }{}
	if err := yaml.Unmarshal([]byte(s.chart), &chart); err != nil {
		return []string{fmt.Sprintf("charts/nodeproxy/Chart.yaml cannot be read: %v.", err)}
	}
	if chart.Version != s.release || chart.AppVersion != "v"+s.release {
		return []string{fmt.Sprintf("charts/nodeproxy/Chart.yaml is version %s of %s, and RELEASE of the Makefile is %s: change both.", chart.Version, chart.AppVersion, s.release)}
	}
	return nil
}

// entry is a version in a channel.
type entry struct{ Name, Replaces string }

func (s *state) checkCatalog() []string {
	template := struct {
		Entries []struct {
			Schema, Name, Image, DefaultChannel string
			Entries                             []entry
		}
	}{}
	if err := yaml.Unmarshal([]byte(s.catalog), &template); err != nil {
		return []string{fmt.Sprintf("config/catalog/template.yaml cannot be read: %v.", err)}
	}
	var out []string
	fail := func(format string, args ...any) {
		out = append(out, fmt.Sprintf("config/catalog/template.yaml: "+format+".", args...))
	}
	channel, images, versions := "", []string{}, []entry(nil)
	for _, e := range template.Entries {
		if e.Schema == "olm.package" {
			channel = e.DefaultChannel
		}
	}
	for _, e := range template.Entries {
		switch {
		case e.Schema == "olm.channel" && e.Name == channel:
			versions = e.Entries
		case e.Schema == "olm.bundle":
			images = append(images, e.Image)
		}
	}
	if len(versions) == 0 || versions[len(versions)-1].Name != s.name() {
		fail("the last entry of the default channel %q is not %s", channel, s.name())
	}
	for i, e := range versions {
		former := ""
		if i > 0 {
			former = versions[i-1].Name
		}
		if e.Replaces != former {
			fail("%s replaces %q, and the entry before it is %q", e.Name, e.Replaces, former)
		}
		isIt := func(image string) bool { return strings.HasSuffix(image, ":"+strings.TrimPrefix(e.Name, "nodeproxy.")) }
		if !slices.ContainsFunc(images, isIt) {
			fail("there is no olm.bundle with the image of %s", e.Name)
		}
	}
	return out
}

// written matches a version as in images and tags.
var written = regexp.MustCompile(`\bv\d+\.\d+\.\d+\b`)

// checkPages rejects versions on pages for users: they would soon be outdated, and commands
// copied from there would install an old release.
func (s *state) checkPages() []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(s.pages)) {
		if found := written.FindString(s.pages[name]); found != "" {
			out = append(out, fmt.Sprintf("%s names %s: write vX.Y.Z there, which stays true.", name, found))
		}
	}
	return out
}

// heading matches a version's heading in CHANGELOG.md.
var heading = regexp.MustCompile(`(?m)^## \[([^\]]+)\](?: - (\d{4}-\d\d-\d\d))?[ \t]*$`)

func (s *state) checkChangelog() []string {
	var out []string
	fail := func(format string, args ...any) { out = append(out, fmt.Sprintf("CHANGELOG.md: "+format+".", args...)) }
	all := heading.FindAllStringSubmatch(s.changelog, -1)
	if len(all) == 0 || all[0][1] != "Unreleased" {
		fail("the first heading of a version is not [Unreleased]")
		return out
	}
	newest := ""
	for i, h := range all[1:] {
		switch v, err := version.ParseSemantic(h[1]); {
		case err != nil || h[2] == "":
			fail("the heading %q is not like [0.1.0] - 2026-01-31", h[0])
		case newest == "":
			newest = h[1]
			if v.GreaterThan(version.MustParseSemantic(s.release)) {
				fail("%s is released already, and RELEASE of the Makefile is %s", h[1], s.release)
			}
		case version.MustParseSemantic(all[i][1]).LessThan(v):
			fail("%s stands above %s", all[i][1], h[1])
		}
	}
	if !s.isFinal() {
		return out
	}
	if newest != s.release {
		fail("the newest version is %q, and %s is to be released", newest, s.release)
	}
	at := heading.FindAllStringIndex(s.changelog, 2)
	end := len(s.changelog)
	if len(at) > 1 {
		end = at[1][0]
	}
	if strings.TrimSpace(s.changelog[at[0][1]:end]) != "" {
		fail("there is something under [Unreleased]: move it below [%s]", s.release)
	}
	return out
}
