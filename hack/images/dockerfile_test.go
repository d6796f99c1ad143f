package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

// The Dockerfiles are for machines with a container engine. Nothing here builds
// them; this compares what they print with what hack/images.sh writes.
func TestDockerfilesMakeTheSameImages(t *testing.T) {
	for _, program := range []string{"nodeproxy-agent", "nodeproxy-controller"} {
		t.Run(program, func(t *testing.T) {
			steps := lastStage(t, strings.TrimPrefix(program, "nodeproxy-")+".Dockerfile")
			file, err := openImage(t, program).ConfigFile()
			if err != nil {
				t.Fatal(err)
			}
			equal := func(what string, got []string, want ...string) {
				t.Helper()
				if !slices.Equal(got, want) {
					t.Errorf("%s is %q in the Dockerfile, %q in the image", what, got, want)
				}
			}
			equal("the entry point", steps["ENTRYPOINT"], file.Config.Entrypoint...)
			equal("the environment", steps["ENV"], file.Config.Env...)
			equal("the working directory", steps["WORKDIR"], file.Config.WorkingDir)
			equal("the user", append(steps["USER"], "")[:1], file.Config.User)
			labels := map[string]string{}
			for _, label := range steps["LABEL"] {
				key, value, _ := strings.Cut(label, "=")
				labels[key] = strings.Trim(value, `"`)
			}
			for _, key := range []string{"title", "description", "source"} {
				key = "org.opencontainers.image." + key
				equal("the label "+key, []string{labels[key]}, file.Config.Labels[key])
			}
		})
	}
}

func TestDockerfilesNameWhatIsThere(t *testing.T) {
	const repository = "../.."
	for _, path := range []string{"agent.Dockerfile", "controller.Dockerfile"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		program := "./cmd/nodeproxy-" + strings.TrimSuffix(path, ".Dockerfile")
		for _, part := range []string{program, "hack/images/" + path} {
			if !strings.Contains(string(text), part) {
				t.Errorf("%s does not name %s", path, part)
			}
			if _, err := os.Stat(filepath.Join(repository, part)); err != nil {
				t.Error(err)
			}
		}
	}
	// One list of packages, and one lock: the agent's Dockerfile runs the same script.
	agent := stages(t, "agent.Dockerfile")
	if !slices.Contains(agent["root"]["COPY"], "hack/images/debian-root.sh") || !slices.Contains(agent["root"]["COPY"], "hack/images/packages.*.lock") ||
		!slices.Contains(agent["root"]["RUN"], `/debian-root.sh "$TARGETARCH" /debian-root`) {
		t.Errorf("agent.Dockerfile does not make its root file system by debian-root.sh: %q", agent["root"])
	}
	if got := agent[""]["COPY"]; !slices.Contains(got, "/debian-root") {
		t.Errorf("agent.Dockerfile does not take the root file system: %q", got)
	}
}

// Base images are named by digest. Only a machine that reaches a registry can find it, so
// it is an argument of the build.
func TestDockerfilesWantDigests(t *testing.T) {
	for _, path := range []string{"agent.Dockerfile", "controller.Dockerfile"} {
		for stage, steps := range stages(t, path) {
			base := steps["FROM"][0]
			if base == "scratch" {
				continue
			}
			check := `case "` + base + `" in *@sha256:*) ;; *)`
			if !strings.HasPrefix(base, "$") || !slices.ContainsFunc(steps["RUN"], func(run string) bool { return strings.HasPrefix(run, check) }) {
				t.Errorf("%s: stage %q is based on %s, and does not check that it has a digest: %q", path, stage, base, steps["RUN"])
			}
		}
	}
}

func lastStage(t *testing.T, path string) map[string][]string {
	t.Helper()
	return stages(t, path)[""]
}

// stages returns the words of each instruction by the name of its stage; that of
// the last stage, whose result is the image, is empty.
func stages(t *testing.T, path string) map[string]map[string][]string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	result, err := parser.Parse(file)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	out, stage := map[string]map[string][]string{}, ""
	for _, node := range result.AST.Children {
		instruction := strings.ToUpper(node.Value)
		args := words(node)
		if instruction == "FROM" {
			stage = ""
			if len(args) == 3 && strings.EqualFold(args[1], "AS") {
				stage = args[2]
			}
			out[stage] = map[string][]string{instruction: args[:1]}
			continue
		}
		if instruction == "ENV" || instruction == "LABEL" { // name, value, separator
			for i := 0; i+2 < len(args); i += 3 {
				out[stage][instruction] = append(out[stage][instruction], args[i]+"="+args[i+1])
			}
			continue
		}
		if out[stage] != nil {
			out[stage][instruction] = append(out[stage][instruction], args...)
		}
	}
	return out
}

func words(node *parser.Node) []string {
	var out []string
	for next := node.Next; next != nil; next = next.Next {
		out = append(out, next.Value)
	}
	return out
}
