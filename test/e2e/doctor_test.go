package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/test/cluster/kubelets"
	"github.com/nodeproxy-io/nodeproxy/test/programs"
	"github.com/nodeproxy-io/nodeproxy/test/recorded"
)

// recordVariable names a directory. If it is set, faults are planted one after the other, and
// the state of the cluster with each is recorded there.
const recordVariable = "RECORD"

// TestDoctor plants faults in a healthy cluster. kubectl nodeproxy doctor, with a viewer's
// permissions, finds each of them, and nothing before and after.
func TestDoctor(t *testing.T) {
	d := &doctor{}
	rows := d.rows()
	if !anyChosen(t, rows) {
		return
	}
	w := newWorld(t, kubelets.Options{Nodes: 2, CoreDNS: true})
	w.work(t, rows)
}

// doctor is the program, and its kubeconfig.
type doctor struct {
	program, kubeconfig string
}

func (d *doctor) rows() []row {
	rows := []row{{name: "doctor-healthy", title: "doctor finds nothing on a healthy cluster", needed: true, do: d.healthyCluster}}
	if directory := os.Getenv(recordVariable); directory != "" {
		return append(rows, row{name: "doctor-record", title: "faults, one after the other, recorded", do: func(r *run) { d.record(r, directory) }})
	}
	return append(rows,
		row{name: "doctor-faults", title: "doctor names faults that are there together", needed: true, do: d.together},
		row{name: "doctor-controller", title: "doctor names faults of the whole", do: d.oneByOne(wholeFaults())},
	)
}

// finding is as much of a finding as the test needs.
type finding struct {
	Reason, Service, Policy string
	Nodes                   []string
	Consequences            []finding
}

// report is as much of the JSON of doctor as the test needs.
type report struct {
	APIVersion, Kind string
	Findings         []finding
	SkippedChecks    []struct{ Check, Message string }
}

// has reports whether a finding is there, also below another one. Where is a Service,
// a node or a policy.
func (r *report) has(reason, where string) bool { return has(r.Findings, reason, where) }

func has(found []finding, reason, where string) bool {
	return slices.ContainsFunc(found, func(f finding) bool {
		return f.Reason == reason && (where == "" || f.Service == where || f.Policy == where || slices.Contains(f.Nodes, where)) || has(f.Consequences, reason, where)
	})
}

// ask runs the program. It fails for the exit code 2, and for one that does not match the
// output.
func (d *doctor) ask(r *run, service string) (*report, error) {
	args := []string{"doctor", "--kubeconfig", d.kubeconfig, "-o", "json"}
	if service != "" {
		args = append(args, service)
	}
	command := exec.CommandContext(r.ctx, d.program, args...)
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	status := 0
	if err := command.Run(); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 {
			return nil, fmt.Errorf("doctor %s: %w: %s", service, err, errs.String())
		}
		status = 1
	}
	found := &report{}
	if err := json.Unmarshal(out.Bytes(), found); err != nil {
		return nil, fmt.Errorf("doctor %s prints %q: %w", service, out.String(), err)
	}
	if findings := len(found.Findings) > 0; findings != (status == 1) || len(found.SkippedChecks) > 0 || found.APIVersion != "cli.nodeproxy.io/v1alpha1" || found.Kind != "DoctorReport" {
		return nil, fmt.Errorf("doctor %s: exit status %d with %s", service, status, out.String())
	}
	return found, nil
}

// well returns nil if doctor finds nothing.
func (d *doctor) well(r *run) error {
	for _, service := range []string{"", "shop/web"} {
		found, err := d.ask(r, service)
		if err != nil {
			return err
		}
		if len(found.Findings) > 0 {
			return fmt.Errorf("doctor %s finds %+v", service, found.Findings)
		}
	}
	return nil
}

// healthyCluster installs nodeproxy, workloads and the program.
func (d *doctor) healthyCluster(r *run) {
	v, err := suite.first()
	r.must(err)
	d.program = filepath.Join(r.temp, "kubectl-nodeproxy")
	r.must(programs.Into(r.ctx, r.temp, programs.Plugin))
	for _, archive := range v.archives() {
		r.must(r.cluster.LoadImage(r.ctx, archive))
	}
	r.must(r.cluster.Install(r.ctx, v.manifest()))
	r.kubectl("apply", "-f", filepath.Join(r.root, sample))
	// Verify the rules more often than by default.
	r.patch(`{"spec":{"settings":{"sync":{"verifyIntervalSeconds":5}}}}`)
	r.kubectl("apply", "-f", filepath.Join(r.root, "test", "e2e", "doctor.yaml"))
	d.balance(r, balancedIP, balancedIP6)
	d.viewer(r)
	r.until(2*time.Minute, "all is well", r.world.well)
	r.until(time.Minute, "doctor finds nothing", func() error { return d.well(r) })
	if _, err := d.ask(r, "shop/no-such"); err == nil || !strings.Contains(err.Error(), "there is no Service shop/no-such") {
		r.Errorf("a Service that there is not: %v", err)
	}
}

// balance writes the status of the load balancer, like a cloud.
func (d *doctor) balance(r *run, ips ...string) {
	service := r.service("web")
	before := client.MergeFrom(service.DeepCopy())
	service.Status.LoadBalancer.Ingress = nil
	for _, ip := range ips {
		service.Status.LoadBalancer.Ingress = append(service.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
	}
	r.must(r.cluster.Client().Status().Patch(r.ctx, service, before))
}

// viewer creates a service account with a viewer's permissions, and its kubeconfig.
func (d *doctor) viewer(r *run) {
	r.kubectl("create", "serviceaccount", "-n", shop, "viewer")
	for _, role := range []string{"view", "nodeproxy-viewer"} {
		r.kubectl("create", "clusterrolebinding", "doctor-"+role, "--clusterrole="+role, "--serviceaccount="+shop+":viewer")
	}
	token := r.kubectl("create", "token", "-n", shop, "viewer", "--duration=1h")
	config, err := clientcmd.LoadFromFile(r.cluster.Kubeconfig())
	r.must(err)
	for name := range config.AuthInfos {
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token}
	}
	d.kubeconfig = filepath.Join(r.temp, "viewer.kubeconfig")
	r.must(clientcmd.WriteToFile(*config, d.kubeconfig))
}

// found waits until doctor names faults.
func (d *doctor) found(r *run, limit time.Duration, faults ...*fault) {
	r.Helper()
	took := r.until(limit, "doctor names the faults", func() error {
		reports := map[string]*report{}
		var missing []string
		for _, f := range faults {
			if reports[f.service] == nil {
				var err error
				if reports[f.service], err = d.ask(r, f.service); err != nil {
					return err
				}
			}
			if !reports[f.service].has(f.finding, f.where) {
				missing = append(missing, f.name)
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("not %s, but %s", strings.Join(missing, ", "), all(reports))
		}
		return nil
	})
	names := make([]string, len(faults))
	for i, f := range faults {
		names[i] = f.name
	}
	r.remark("%s after %s", strings.Join(names, ", "), seconds(took))
}

// alone waits until doctor finds a fault, and nothing else.
func (d *doctor) alone(r *run, limit time.Duration, f *fault) {
	r.Helper()
	d.found(r, limit, f)
	want := f.finding
	if f.under != "" {
		want = f.under
	}
	r.until(limit, "doctor names nothing else", func() error {
		found, err := d.ask(r, f.service)
		if err != nil {
			return err
		}
		if len(found.Findings) != 1 || found.Findings[0].Reason != want || !found.has(f.finding, f.where) {
			return fmt.Errorf("with %s it names %+v, want %s alone", f.name, found.Findings, want)
		}
		return nil
	})
}

// all are the findings of reports, human-readable.
func all(reports map[string]*report) string {
	var texts []string
	for service, found := range reports {
		texts = append(texts, fmt.Sprintf("%q: %+v", service, found.Findings))
	}
	return strings.Join(texts, ", ")
}

// gone waits until doctor finds nothing.
func (d *doctor) gone(r *run) {
	r.Helper()
	r.until(2*time.Minute, "doctor finds nothing any more", func() error { return d.well(r) })
}

// together plants one after the other what a node cannot have together, then independent faults at once. The
// stopped agent is last: a node that is down halts the rollout that takes a policy from another one.
func (d *doctor) together(r *run) {
	for _, f := range nodeFaults() {
		f.plant(r)
		d.found(r, time.Minute, f)
		f.repair(r)
	}
	silent := agentStopped()
	silent.plant(r)
	atOnce := append(objectFaults(), rulesModified(), tableFull())
	for _, f := range atOnce {
		f.plant(r)
	}
	// An agent writes again some time after the second proxy has gone, and drifts 10 s after its first repair.
	d.found(r, 2*time.Minute, atOnce...)
	for _, f := range atOnce {
		f.repair(r)
	}
	d.found(r, 2*time.Minute, silent)
	silent.repair(r)
	d.gone(r)
}

func (d *doctor) oneByOne(faults []*fault) func(*run) {
	return func(r *run) {
		for _, f := range faults {
			f.plant(r)
			d.alone(r, time.Minute, f)
			f.repair(r)
			d.gone(r)
		}
	}
}

// record plants one fault after the other and records the cluster with each.
func (d *doctor) record(r *run, directory string) {
	config, err := clientcmd.BuildConfigFromFlags("", r.cluster.Kubeconfig())
	r.must(err)
	write := func(name string) { r.must(recorded.Record(r.ctx, config, filepath.Join(directory, name), time.Now())) }
	write("healthy")
	for _, f := range slices.Concat(objectFaults(), nodeFaults(), []*fault{rulesModified(), tableFull(), agentStopped()}, wholeFaults()) {
		f.plant(r)
		d.alone(r, 3*time.Minute, f)
		r.pass(2 * time.Second) // for the controller to react
		write(f.name)
		f.repair(r)
		d.gone(r)
	}
}
