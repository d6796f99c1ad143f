package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	changelog = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-03-01\n\n### Added\n\n- More.\n\n## [0.1.0] - 2026-01-31\n"
	bundle    = "metadata: {name: nodeproxy.v0.2.0}\nspec: {version: 0.2.0}\n"
	chart     = "version: 0.2.0\nappVersion: v0.2.0\n"
	catalog   = `entries:
- {schema: olm.package, name: nodeproxy, defaultChannel: candidate}
- schema: olm.channel
  name: candidate
  entries:
  - {name: nodeproxy.v0.1.0}
  - {name: nodeproxy.v0.2.0, replaces: nodeproxy.v0.1.0}
- {schema: olm.bundle, image: "example.com/bundle:v0.1.0"}
- {schema: olm.bundle, image: "example.com/bundle:v0.2.0"}
`
)

func released() *state {
	return &state{release: "0.2.0", changelog: changelog, bundle: bundle, chart: chart, catalog: catalog, final: true, pages: map[string]string{"docs/olm.md": "image: catalog:vX.Y.Z, v1.2"}}
}

func TestRelease(t *testing.T) {
	replace := func(text *string, old, with string) { *text = strings.Replace(*text, old, with, 1) }
	for name, c := range map[string]struct {
		change func(s *state)
		want   []string
	}{
		"as it is": {change: func(s *state) {}},
		"with its tag": {change: func(s *state) {
			s.final, s.tags = false, []string{"v0.2.0"}
		}},
		"being prepared": {change: func(s *state) {
			s.final, s.changedCRDs = false, []string{"a.yaml"}
			replace(&s.changelog, "## [0.2.0] - 2026-03-01\n", "")
		}},
		"no version": {
			change: func(s *state) { s.release = "v0.2" },
			want:   []string{`RELEASE of the Makefile is "v0.2", which is not a version like 0.1.0.`},
		},
		"another bundle": {
			change: func(s *state) { replace(&s.bundle, "v0.2.0", "v0.1.0") },
			want:   []string{"The bundle is nodeproxy.v0.1.0, version 0.2.0, and RELEASE of the Makefile is 0.2.0: run make bundle."},
		},
		"another chart": {
			change: func(s *state) { replace(&s.chart, "v0.2.0", "v0.1.0") },
			want:   []string{"charts/nodeproxy/Chart.yaml is version 0.2.0 of v0.1.0, and RELEASE of the Makefile is 0.2.0: change both."},
		},
		"another tag": {
			change: func(s *state) { s.tags = []string{"v0.2.0", "v0.2.1"} },
			want:   []string{"This commit has the tag v0.2.1, and RELEASE of the Makefile is 0.2.0."},
		},
		"not in the channel": {
			change: func(s *state) { replace(&s.catalog, "  - {name: nodeproxy.v0.2.0, replaces: nodeproxy.v0.1.0}\n", "") },
			want:   []string{`config/catalog/template.yaml: the last entry of the default channel "candidate" is not nodeproxy.v0.2.0.`},
		},
		"no way from the last one": {
			change: func(s *state) { replace(&s.catalog, ", replaces: nodeproxy.v0.1.0", "") },
			want:   []string{`config/catalog/template.yaml: nodeproxy.v0.2.0 replaces "", and the entry before it is "nodeproxy.v0.1.0".`},
		},
		"no bundle in the catalog": {
			change: func(s *state) { replace(&s.catalog, "bundle:v0.2.0", "bundle:v0.2.1") },
			want:   []string{"config/catalog/template.yaml: there is no olm.bundle with the image of nodeproxy.v0.2.0."},
		},
		"no heading": {
			change: func(s *state) { replace(&s.changelog, "## [0.2.0] - 2026-03-01\n", "") },
			want: []string{
				`CHANGELOG.md: the newest version is "0.1.0", and 0.2.0 is to be released.`,
				"CHANGELOG.md: there is something under [Unreleased]: move it below [0.2.0].",
			},
		},
		"no date": {
			change: func(s *state) { replace(&s.changelog, "[0.1.0] - 2026-01-31", "[0.1.0]") },
			want:   []string{`CHANGELOG.md: the heading "## [0.1.0]" is not like [0.1.0] - 2026-01-31.`},
		},
		"older than what is released": {
			change: func(s *state) { replace(&s.changelog, "[0.2.0]", "[0.3.0]") },
			want: []string{
				"CHANGELOG.md: 0.3.0 is released already, and RELEASE of the Makefile is 0.2.0.",
				`CHANGELOG.md: the newest version is "0.3.0", and 0.2.0 is to be released.`,
			},
		},
		"wrong order": {
			change: func(s *state) { replace(&s.changelog, "## [0.1.0]", "## [0.2.1]") },
			want:   []string{"CHANGELOG.md: 0.2.0 stands above 0.2.1."},
		},
		"no place for what is new": {
			change: func(s *state) { replace(&s.changelog, "[Unreleased]", "[0.2.1]") },
			want:   []string{"CHANGELOG.md: the first heading of a version is not [Unreleased]."},
		},
		"a page with a version": {
			change: func(s *state) { s.pages["docs/install.md"] = "make images VERSION=v0.1.0" },
			want:   []string{"docs/install.md names v0.1.0: write vX.Y.Z there, which stays true."},
		},
		"CRDs not copied": {
			change: func(s *state) { s.changedCRDs = []string{"a.yaml"} },
			want:   []string{"config/crd/released/a.yaml is not that of config/crd/bases: copy it."},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := released()
			c.change(s)
			if diff := cmp.Diff(c.want, s.check()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestGather(t *testing.T) {
	directory := t.TempDir()
	write := func(text string, name ...string) {
		t.Helper()
		path := filepath.Join(append([]string{directory}, name...)...)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(changelog, "CHANGELOG.md")
	write(chart, "charts", "nodeproxy", "Chart.yaml")
	write(bundle, "bundle", "manifests", "nodeproxy.clusterserviceversion.yaml")
	if _, err := gather(t.Context(), directory, "0.2.0"); err == nil || !strings.Contains(err.Error(), "template.yaml") {
		t.Errorf("without a catalog it prints %v", err)
	}
	write(catalog, "config", "catalog", "template.yaml")
	write("install", "docs", "install.md")
	write("olm", "docs", "olm.md")
	write("same", "config", "crd", "bases", "same.yaml")
	write("same", "config", "crd", "released", "same.yaml")
	write("new", "config", "crd", "bases", "other.yaml")
	write("old", "config", "crd", "released", "other.yaml")
	write("new", "config", "crd", "bases", "new.yaml")
	for _, args := range [][]string{
		{"init", "--quiet"}, {"add", "."}, {"-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message=a"}, {"tag", "v0.2.0"}, {"tag", "other"},
	} {
		if out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", directory}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	s, err := gather(t.Context(), directory, "0.2.0")
	if err != nil {
		t.Fatal(err)
	}
	want := &state{
		release: "0.2.0", changelog: changelog, bundle: bundle, chart: chart, catalog: catalog,
		pages:       map[string]string{"docs/install.md": "install", "docs/olm.md": "olm"},
		changedCRDs: []string{"new.yaml", "other.yaml"}, tags: []string{"v0.2.0"},
	}
	if diff := cmp.Diff(want, s, cmp.AllowUnexported(state{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	write(changelog+"\n", "CHANGELOG.md")
	if s, err = gather(t.Context(), directory, "0.2.0"); err != nil || len(s.tags) > 0 {
		t.Errorf("with a change that is not committed it has the tags %q: %v", s.tags, err)
	}
}
