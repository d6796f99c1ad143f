package shards

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
)

// claimsVariable names, in the process of a shard, the directory in which shards claim specs.
const claimsVariable = "NODEPROXY_TEST_CLAIMS"

// Run has count processes of this test binary share the specs, and checks that each spec ran in exactly
// one of them. It reports false in such a process, which runs the specs that it can Claim.
func Run(t *testing.T, count int) bool {
	t.Helper()
	if os.Getenv(claimsVariable) != "" {
		return false
	}
	dir := t.TempDir()
	seed := ginkgo.GinkgoRandomSeed()
	type shard struct {
		cmd    *exec.Cmd
		output strings.Builder
		report string
	}
	running := make([]*shard, count)
	for i := range running {
		s := &shard{report: filepath.Join(dir, fmt.Sprintf("report-%d.json", i))}
		s.cmd = exec.CommandContext(t.Context(), os.Args[0], append(chosen(), "-test.run=^"+t.Name()+"$", "-test.timeout=0",
			"-ginkgo.json-report="+s.report, fmt.Sprintf("-ginkgo.seed=%d", seed), "-ginkgo.silence-skips")...)
		s.cmd.Env = append(os.Environ(), claimsVariable+"="+dir)
		s.cmd.Stdout, s.cmd.Stderr = &s.output, &s.output
		s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := s.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		running[i] = s
	}
	var reports []types.Report
	for i, s := range running {
		if err := s.cmd.Wait(); err != nil {
			t.Errorf("shard %d: %v\n%s", i, err, s.output.String())
			continue
		}
		text, err := os.ReadFile(s.report)
		if err != nil {
			t.Fatal(err)
		}
		var all []types.Report
		if err := json.Unmarshal(text, &all); err != nil {
			t.Fatal(err)
		}
		reports = append(reports, all...)
	}
	if t.Failed() {
		return true
	}
	specs, err := addUp(reports, len(chosen()) > 0)
	if err != nil {
		t.Fatal(err)
	}
	// As Ginkgo does, for hack/testreport.
	fmt.Printf("SUCCESS! -- %d Passed | 0 Failed | 0 Pending | 0 Skipped\n", specs)
	return true
}

// chosen are the flags of this process that choose specs.
func chosen() (out []string) {
	flag.Visit(func(f *flag.Flag) {
		switch f.Name {
		case "ginkgo.focus", "ginkgo.skip", "ginkgo.label-filter":
			out = append(out, fmt.Sprintf("-%s=%s", f.Name, f.Value))
		}
	})
	return out
}

// addUp returns how many specs there are, or an error unless each passed in exactly one
// shard and was skipped, as claimed by another, in all others. Some: flags may leave out others.
func addUp(reports []types.Report, some bool) (int, error) {
	passed := map[string]int{}
	var errs []error
	for _, r := range reports {
		for _, spec := range r.SpecReports {
			if spec.LeafNodeType != types.NodeTypeIt {
				continue
			}
			name := specName(spec)
			n := passed[name]
			switch {
			case some && spec.State == types.SpecStateSkipped && spec.Failure.Message == "":
				continue
			case spec.State == types.SpecStatePassed:
				n++
			case spec.State != types.SpecStateSkipped || spec.Failure.Message != claimedByAnother:
				errs = append(errs, fmt.Errorf("%s: %s %s", name, spec.State, spec.Failure.Message))
			}
			passed[name] = n
		}
	}
	for name, n := range passed {
		if n != 1 {
			errs = append(errs, fmt.Errorf("%s ran in %d shards", name, n))
		}
	}
	if len(passed) == 0 {
		errs = append(errs, errors.New("no spec ran"))
	}
	return len(passed), errors.Join(errs...)
}

const claimedByAnother = "another shard runs it"

// Claim skips a spec that another process has claimed. It is called before each spec.
func Claim() {
	dir := os.Getenv(claimsVariable)
	name := sha256.Sum256([]byte(specName(ginkgo.CurrentSpecReport())))
	file, err := os.OpenFile(filepath.Join(dir, hex.EncodeToString(name[:])), os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		ginkgo.Skip(claimedByAnother)
	}
	if err != nil {
		ginkgo.Fail(err.Error())
	}
	_ = file.Close() // it is empty
}

// specName is unique: entries of a table differ in their text.
func specName(r ginkgo.SpecReport) string {
	return strings.Join(slices.Concat(r.ContainerHierarchyTexts, []string{r.LeafNodeText, r.LeafNodeLocation.String()}), " / ")
}
