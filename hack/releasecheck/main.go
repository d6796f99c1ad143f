package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	release := flag.String("release", "", "the version, as in 0.1.0")
	final := flag.Bool("final", false, "the commit is about to get its tag")
	flag.Parse()
	s, err := gather(context.Background(), ".", *release)
	if err != nil {
		fmt.Fprintln(os.Stderr, "releasecheck:", err)
		os.Exit(2)
	}
	s.final = *final
	found := s.check()
	for _, text := range found {
		fmt.Println(text)
	}
	if len(found) > 0 {
		os.Exit(1)
	}
}

// gather reads the state of a repository.
func gather(ctx context.Context, directory, release string) (*state, error) {
	s := &state{release: release}
	var errs []error
	text := func(name ...string) string {
		text, err := os.ReadFile(filepath.Join(append([]string{directory}, name...)...))
		errs = append(errs, err)
		return string(text)
	}
	s.changelog = text("CHANGELOG.md")
	s.bundle = text("bundle", "manifests", "nodeproxy.clusterserviceversion.yaml")
	s.chart = text("charts", "nodeproxy", "Chart.yaml")
	s.catalog = text("config", "catalog", "template.yaml")
	s.pages = map[string]string{}
	for _, page := range []string{"install.md", "olm.md"} {
		s.pages["docs/"+page] = text("docs", page)
	}
	bases, err := filepath.Glob(filepath.Join(directory, "config", "crd", "bases", "*.yaml"))
	errs = append(errs, err)
	for _, name := range bases {
		base := filepath.Base(name)
		now := text("config", "crd", "bases", base)
		if released, err := os.ReadFile(filepath.Join(directory, "config", "crd", "released", base)); err != nil || string(released) != now {
			s.changedCRDs = append(s.changedCRDs, base)
		}
	}
	// Without git, as in a source archive, there are no tags; and a tag does not cover later
	// changes.
	git := func(args ...string) ([]byte, error) {
		return exec.CommandContext(ctx, "git", append([]string{"-C", directory}, args...)...).Output()
	}
	if _, err := git("diff", "--quiet", "HEAD"); err == nil {
		if out, err := git("tag", "--points-at", "HEAD", "--list", "v[0-9]*"); err == nil {
			s.tags = strings.Fields(string(out))
		}
	}
	return s, errors.Join(errs...)
}
