package status

import (
	"encoding/json"
	commandline "flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/agent/drift"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

var update = commandline.Bool("update", false, "write the golden files in testdata instead of comparing with them; then run test/api with -update too, which prints them with kubectl")

// goldenStatuses are the situations that an operator meets, each in an edit of
// a node on which all is well.
var goldenStatuses = map[string]func(*desired.Snapshot, *Facts){
	"all-well": func(*desired.Snapshot, *Facts) {},
	"service-rejected": func(s *desired.Snapshot, _ *Facts) {
		s.Services--
		s.Rejected = map[dataplane.ServiceName]string{agenttest.Name("cart"): "IPv4: iptables-restore: line 31 failed: Extension recent revision 0 not supported, missing kernel module?"}
	},
	"other-proxy": func(s *desired.Snapshot, f *Facts) {
		*s = desired.Snapshot{Now: s.Now, Own: s.Own, Exists: true, Listed: true, InventoryKnown: true}
		f.OtherProxy = `http://127.0.0.1:10249/proxyMode answers "iptables"`
		f.Drift = drift.Facts{}
	},
	"audit-differs": func(s *desired.Snapshot, f *Facts) {
		f.Audit, f.OtherProxy = true, `http://127.0.0.1:10249/proxyMode answers "iptables"`
		s.Difference = &dataplane.Difference{Count: 17, Examples: []string{
			"chain KUBE-SVC-XPGD46QRK7WJZT7O missing in nat", "rule of shop/cart missing in KUBE-SERVICES in nat"}}
		s.Applied.LastSync = nil
		f.Drift = drift.Facts{}
	},
	"endpoint-fails": func(s *desired.Snapshot, f *Facts) {
		s.Userspace = true
		f.Userspace = &v1alpha1.UserspaceReport{Failing: 1, Endpoints: []v1alpha1.FailingEndpoint{{
			Service: "shop/cart", Port: "80/TCP", Endpoint: "10.244.1.7:8080", Reason: v1alpha1.EndpointRejects,
			Since: Seconds(agenttest.Epoch.Add(-time.Hour)), Failed: 3, Connections: 100,
		}}}
	},
	"objects-retained": func(s *desired.Snapshot, _ *Facts) {
		s.Retained = []dataplane.ServiceName{agenttest.Name("cart"), agenttest.Name("pay")}
		s.RetainedSince, s.UnconfirmedSince = s.Now.Add(-time.Minute), s.Now.Add(-time.Minute)
	},
}

// Each status that is reported is stored as a file, so that what changes in it is
// seen in a review, and so that others can print it.
func TestGoldenStatuses(t *testing.T) {
	for title, edit := range goldenStatuses {
		t.Run(title, func(t *testing.T) {
			s, f := programmed(), facts4
			s.Own.Generation, s.Applied.Generation = 1, 1
			s.Families[dataplane.IPv6] = desired.FamilySnapshot{Done: true}
			f.Families = []dataplane.Family{dataplane.IPv4, dataplane.IPv6}
			f.Tracking.Report = &v1alpha1.ConntrackReport{Entries: 31022, Max: 262144, UsagePercent: 12, Buckets: 65536, FlowsCleaned: 18}
			f.Drift = drift.Facts{Repairs: 2, LastTime: agenttest.Epoch.Add(-10 * time.Hour),
				Examples: []string{"chain KUBE-SVC-XPGD46QRK7WJZT7O missing in nat"}}
			edit(&s, &f)
			got, err := json.MarshalIndent(Build(s, f, nil), "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, '\n')
			file := filepath.Join("testdata", "status", title+".json")
			if *update {
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatalf("%v: go test ./agent -run TestGoldenStatuses -update writes it", err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s (-want +got); if it is meant, go test ./agent -run TestGoldenStatuses -update:\n%s", file, diff)
			}
		})
	}
}
