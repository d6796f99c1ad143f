#!/usr/bin/env bash
# Plants faults that must fail a run of tests, and fails unless the run fails for that reason:
# a lost connection in each suite with a steady load, which must not be retried; and, in a
# copy of this tree, flaky, vanishing and skipped tests, tests that prove too little, a
# stolen connection, missing limits of tenants, slow health, and a machine without clusters. Needs root.
# PLANT=REGEXP chooses faults by their names.
set -uo pipefail
cd "$(dirname "$0")/.."

unset RETRY TESTFLAGS NODEPROXY_PROGRAMS # each run builds the programs of its own tree
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
status=0

# planted NAME LINE NEVER KIND VARIABLES... runs hack/test.sh KIND, which must fail and print a
# line that matches LINE, and none that matches NEVER.
planted() {
	local name=$1 line=$2 never=$3 kind=$4 problem=
	shift 4
	[[ $name =~ ${PLANT:-} ]] || return 0
	if env "$@" hack/test.sh "$kind" >"$temp/log" 2>&1; then
		problem="did not fail the run"
	elif ! grep -qE -- "$line" "$temp/log"; then
		problem="did not cause the failure"
	elif grep -qE -- "$never" "$temp/log"; then
		problem="was retried"
	fi
	conclude "$name" "$problem"
}

conclude() {
	local name=$1 problem=$2
	concluded=1
	if [[ -n $problem ]]; then
		cat "$temp/log"
		echo "hack/plant.sh: $name: the planted fault $problem; the output of the run is above" >&2
		status=1
		return
	fi
	echo "ok    $name"
}

lost() {
	local name=$1 kind=$2
	shift 2
	planted "a lost connection in $name" 'planted by PLANT_LOSS' '^AGAIN ' "$kind" PLANT_LOSS=1 "$@"
}

lost faults faults FAULTS=lock-held
lost faults/conntrack-full faults FAULTS=conntrack-full
lost nodes kernel TESTFLAGS='-run ^TestTakeover$'
lost 'nodes, the last one,' kernel PLANT_LOSS=last TESTFLAGS='-run ^TestTakeover$'
lost nodes/policies kernel TESTFLAGS='-run ^TestPolicies$'
lost nodes/early kernel TESTFLAGS='-run ^TestEarlyConnections$'
lost nodes/flows kernel TESTFLAGS='-run ^TestUDPFlowsFollowTheirService$'
lost scenarios/connections kernel TESTFLAGS='-run ^TestConnections$'
lost ipvs ipvs TESTFLAGS='-run ^TestModeSwitch$'
lost ipvs/connect ipvs TESTFLAGS='-run ^TestServices$'
lost ipvs/modes ipvs TESTFLAGS='-run ^TestSwitchWithoutPodRanges$'
lost ipvs/parity ipvs TESTFLAGS='-run ^TestTakeOver$'
lost e2e e2e E2E=install,scale-to-zero
lost soak soak SOAK=30s
lost tenants tenants TENANTS='^finalizers' TESTFLAGS='-run ^TestTenants$'

mkdir "$temp/tree"
git ls-files -z --cached --others --exclude-standard | tar --null -T - -cf - | tar -xf - -C "$temp/tree" || exit 1
cd "$temp/tree" || exit 1
cp hack/testdata/planted_test.go test/speed/
for package in test/parity test/scenarios agent/health; do
	sed "s/^package speed/package $(basename $package)/" hack/testdata/planted_test.go >$package/planted_test.go
done

tests="TESTFLAGS=-run ^TestPlanted"

# fresh forgets which planted tests have run.
fresh() {
	rm -rf "$temp/ran" && mkdir "$temp/ran"
	echo PLANT_DIRECTORY="$temp/ran"
}

# forgiven NAME VARIABLES... runs two flaky tests, which must pass and be listed at the end.
forgiven() {
	local name=$1 problem=
	shift
	[[ $name =~ ${PLANT:-} ]] || return 0
	if ! env "$@" hack/test.sh parity >"$temp/log" 2>&1; then
		problem="failed the run, which two may not"
	elif [[ $(grep -c '^RETRIED test/parity TestPlantedFlakes/.: failed, then passed. The first' "$temp/log") != 2 ]]; then
		problem="is not listed at the end"
	fi
	conclude "$name" "$problem"
}

forgiven "two flaky tests, which may be repeated" "$tests" "$(fresh)" PLANT_FLAKES=2
planted "three flaky tests" 'not repeated, because more than 2 tests failed' '^AGAIN ' parity "$tests" "$(fresh)" PLANT_FLAKES=3
planted "a time beyond its bound" 'FAIL .*test/speed TestPlantedFlakes/0: failed\. It printed' '^AGAIN ' speed "$tests" "$(fresh)" PLANT_FLAKES=1
planted "a flaky unit" 'FAIL .*TestPlantedFlakes/0: failed\. It printed' '^AGAIN ' unit "$tests" "$(fresh)" PLANT_FLAKES=1
planted "a flaky test under the race detector" 'FAIL .*agent/health TestPlantedFlakes/0: failed\. It printed' '^AGAIN ' race "$tests" "$(fresh)" PLANT_FLAKES=1
planted "a test that is gone when it is repeated" 'did not run when it was repeated' '^RETRIED ' parity "$tests" "$(fresh)" PLANT_VANISHES=1
planted "a skipped test" 'may not be skipped: test/speed TestPlantedSkip: ' '^AGAIN ' speed "$tests" PLANT_SKIP=1

sed -i 's/^func writes(pid int) bool {$/&\n\treturn false/' test/faults/agents_test.go
planted "kills that miss every write" 'only 0 of 30 kills came during a write, want at least 10: this proves too little' '^AGAIN ' faults RETRY=0 FAULTS=agent-killed

sed -i 's/^	return \[\]intended{$/&{name: "planted", apply: func(situation, rules.Rules) {}},/' test/parity/differences.go
planted "a listed difference that is never met" 'difference "planted" was never met' '^AGAIN ' parity RETRY=0 "TESTFLAGS=-run ^TestSideBySide$" \
	PARITY_FULL=1 PARITY_WORLDS=1 PARITY_FRESH_WORLDS=0

sed -i 's/p99 > most && os.Getenv("RETRY") != "0" {/true {/' test/tenants/tenants_test.go
planted "three attacks that are repeated" '^FAIL .*3 tests passed only when repeated; at most 2 may' '^AGAIN ' tenants "TESTFLAGS=-run ^TestTenants$" \
	TENANTS='^(cluster IPs of later Services as external IPs|a Service that a kernel rejects|a flood of connections to port 10256)$'

# Neither the controller nor agents prevent the theft of a cluster IP: the older Service gets it.
sed -i 's/^func (r ServiceRanges) Of(a netip.Addr) (netip.Prefix, bool) {$/&\n\treturn netip.Prefix{}, false/' controllers/render/reserved.go
sed -i 's/rank = Own$/rank = Ordinary/' agent/combine/combine.go
planted "a stolen cluster IP" 'a connection of the second tenant was stolen: thief answers at ' '^AGAIN ' tenants \
	TENANTS='^cluster IPs of later Services as external IPs$' "TESTFLAGS=-run ^TestTenants$"

# Each lacks what protects others from one tenant. They are judged by what the row is about.
attacked() {
	planted "$1" "$3" '^AGAIN ' tenants RETRY=0 TENANTS="^$2" "TESTFLAGS=-run ^TestTenants$"
}

sed -i 's/^	eventInterval = .*/	eventInterval = time.Second/' controllers/events/queue.go
attacked "events without limit" 'reasons of rejection' 'events ServiceNotRendered of noisy-.*, more than one in ten minutes'
sed -i 's/for l\.open\.Len() > l\.most {/for false {/' agent/httpport/httpport.go
attacked "connections without limit" 'a flood of connections' 'connections to port 10256 of .* are open at once, more than '
sed -i 's/wait := max(0, e\.bucket\.Wait(.*/wait := time.Duration(0)/; s/len(e\.queued) < enqueueAtOnce/true/' controllers/nodes/enqueue.go
attacked "writes to nodes without pacing" 'one slice that names 300 nodes' 'NodeProxyRules of the crowd were written in .*, more than '

sed -i 's/^	case l\.UID != 0:$/	case false:/' agent/ownership/probe.go
attacked "any process counts as kube-proxy" 'an unprivileged kube-proxy' 'an unprivileged kube-proxy at .*: not within '
sed -i "s/request\.resource\.resource != 'leases' || variables\.sameReferences/true || variables.sameReferences/" config/admission/agents.yaml
attacked "Leases of which agents may write all" 'finalizers and labels on a Lease' 'a label on a Lease: not denied by the policy'
sed -i 's/^func (s ServiceSize) Excess() (limit, text string) {$/&\n\treturn "", ""/' api/v1alpha1/limits.go
attacked "Services without limits" '3,000 ports with 300 endpoints each' 'no event ServiceNotRendered of Service attacker/ports'
sed -i '/^func APIServers(/,/^}/s/^	out := .*/&\n\treturn out/' controllers/render/reserved.go
attacked "an API server's address for any Service" "an API server's address" "an API server's address as an external IP: "
sed -i 's/^\t\tif !r\.Changed {$/\t\tif true {/' controllers/policies/services.go
attacked "a rollout that any rejection halts" 'a rejected Service while a policy rolls out' ' is shaped by the policies '
sed -i 's/^func crowdedOut(.*{$/&\n\tif true {\n\t\treturn nil\n\t}/' controllers/render/share.go
attacked "local endpoints without limit" '200 Services, policy Local' 'no event .* of Service attacker/same-node-'
sed -i 's/^\twinners := make(map\[endpointKey\]claim, expected).*/\tfor _, p := range ports {\n\t\texpected += here.Len() * len(p)\n\t}\n&/' controllers/render/local.go
attacked "space for the ports of one slice with the endpoints of others" 'a slice of 20000 ports' 'controller takes .* MB, more than 2 times'

sed -i 's/bindPause = 5 \* time\.Second/bindPause = time.Hour/' agent/health/server.go
attacked "ports that are tried once" 'an unprivileged server at ports' 'an unprivileged server at ports .*: not within '
sed -i 's/^\t\tif !p\.Rejection(err) {$/\t\tif true {/' agent/dataplane/engine/isolate.go
attacked "a rejected Service that is not written alone" 'a Service that a kernel rejects$' 'a Service that a kernel rejects: not within '
# The last one, because it fails every attack.
sed -i 's/^	probe("\/livez", func() string {$/&\n\t\ttime.Sleep(300 * time.Millisecond)/' agent/health/health.go
attacked "health that waits" 'no attack' 'quiet: probes are answered after .*, more than 100ms'

sed -i 's/^func Check() error {$/&\n\treturn ErrNotPossible/' test/cluster/check.go
unclustered() { planted "a machine on which no cluster can run, in $1" "may not be skipped: test/$1 " '^AGAIN ' "${@:2}"; }

unclustered faults faults FAULTS=lock-held
unclustered nodes kernel TESTFLAGS='-run ^TestTakeover$'
unclustered parity parity TESTFLAGS='-run ^TestSideBySide$'
unclustered ipvs ipvs TESTFLAGS='-run ^TestModeSwitch$'
unclustered ipvs/parity ipvs TESTFLAGS='-run ^TestTakeOver$'
unclustered e2e e2e E2E=install
if [[ -z ${concluded:-} ]]; then
	echo "hack/plant.sh: no fault's name matches PLANT=${PLANT:-}" >&2
	status=1
fi
exit "$status"
