package v1alpha1

import (
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// update makes the test write the checksum of the current schemas.
var update = flag.Bool("update", false, "write the checksum of the current schemas for the current SchemaRevision, unless that has been released")

// revisionsFile has a line for each revision: its number and the checksum of its schemas.
var revisionsFile = filepath.Join("testdata", "schema-revisions.txt")

// A changed schema needs a new revision, by which a controller recognizes the CRDs it needs.
func TestSchemaRevision(t *testing.T) {
	sum := sumOfSchemas(t)
	text, err := os.ReadFile(revisionsFile)
	if err != nil {
		t.Fatal(err)
	}
	known := map[int]string{}
	for line := range strings.Lines(string(text)) {
		var revision int
		var sum string
		if _, err := fmt.Sscanf(line, "%d %s", &revision, &sum); err != nil {
			t.Fatalf("%s: %q is no revision and sum: %v", revisionsFile, line, err)
		}
		known[revision] = sum
	}
	if len(known) != SchemaRevision && !*update {
		t.Fatalf("%s has %d revisions, and SchemaRevision is %d: run this test with -update", revisionsFile, len(known), SchemaRevision)
	}
	if known[SchemaRevision] == sum {
		return
	}
	if !*update {
		t.Fatalf("the schemas of the CRDs are not those of SchemaRevision %d. If a release has that revision, raise it, in names.go and in the marker at each kind, and run make generate. Then run go test ./api/v1alpha1 -run %s -update", SchemaRevision, t.Name())
	}
	known[SchemaRevision] = sum
	var out strings.Builder
	for revision := 1; revision <= SchemaRevision; revision++ {
		fmt.Fprintf(&out, "%d %s\n", revision, known[revision])
	}
	if err := os.WriteFile(revisionsFile, []byte(out.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// sumOfSchemas returns a checksum of all CRDs without their descriptions. It checks that each
// has the current revision.
func sumOfSchemas(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", "config", "crd", "bases", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no CRDs: %v", err)
	}
	hash := sha256.New()
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd struct {
			Metadata struct {
				Annotations map[string]string `json:"annotations"`
			} `json:"metadata"`
			Spec any `json:"spec"`
		}
		if err := yaml.Unmarshal(text, &crd); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if got := crd.Metadata.Annotations[AnnotationSchemaRevision]; got != strconv.Itoa(SchemaRevision) {
			t.Errorf("%s: annotation %s is %q, and SchemaRevision is %d: correct the marker at the kind and run make generate", file, AnnotationSchemaRevision, got, SchemaRevision)
		}
		if err := json.NewEncoder(hash).Encode(withoutDescriptions(crd.Spec)); err != nil {
			t.Fatal(err)
		}
	}
	return fmt.Sprintf("%x", hash.Sum(nil)[:16])
}

// withoutDescriptions removes descriptions, at any depth. A field named description is not a
// string, and stays.
func withoutDescriptions(value any) any {
	switch v := value.(type) {
	case map[string]any:
		if _, text := v["description"].(string); text {
			delete(v, "description")
		}
		for key := range v {
			v[key] = withoutDescriptions(v[key])
		}
	case []any:
		for i := range v {
			v[i] = withoutDescriptions(v[i])
		}
	}
	return value
}

func TestWithoutDescriptions(t *testing.T) {
	in := map[string]any{"description": "text", "properties": map[string]any{
		"description": map[string]any{"type": "string", "description": "text"}, "list": []any{map[string]any{"description": "text"}},
	}}
	out, err := json.Marshal(withoutDescriptions(in))
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"properties":{"description":{"type":"string"},"list":[{}]}}`; string(out) != want {
		t.Errorf("got %s, want %s", out, want)
	}
}
