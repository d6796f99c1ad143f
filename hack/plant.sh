#!/usr/bin/env bash
# Makes one connection of each suite with a steady load fail, and fails itself unless that
# suite then fails, by that connection, and repeats nothing: a lost connection must never
# go unnoticed. It runs the shortest test of each suite, as root.
set -uo pipefail
cd "$(dirname "$0")/.."

log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0

# planted NAME KIND VARIABLES... runs hack/test.sh KIND.
planted() {
	local name=$1 kind=$2 problem=
	shift 2
	if env PLANT_LOSS=1 "$@" hack/test.sh "$kind" >"$log" 2>&1; then
		problem="passed in spite of a lost connection"
	elif ! grep -q 'planted by PLANT_LOSS' "$log"; then
		problem="failed, but not by the lost connection"
	elif grep -q '^AGAIN ' "$log"; then
		problem="repeated a test that lost a connection"
	fi
	if [[ -n $problem ]]; then
		cat "$log"
		echo "hack/plant.sh: $name $problem; its output is above" >&2
		status=1
		return
	fi
	echo "ok    $name fails if a connection is lost"
}

planted faults faults FAULTS=lock-held
planted faults/conntrack-full faults FAULTS=conntrack-full
planted nodes kernel TESTFLAGS='-run ^TestTakeover$'
planted nodes/policies kernel TESTFLAGS='-run ^TestPolicies$'
planted ipvs ipvs TESTFLAGS='-run ^TestModeSwitch$'
planted ipvs/modes ipvs TESTFLAGS='-run ^TestSwitchWithoutPodRanges$'
planted ipvs/parity ipvs TESTFLAGS='-run ^TestTakeOver$'
planted e2e e2e E2E=install,scale-to-zero
planted soak soak SOAK=30s
exit "$status"
