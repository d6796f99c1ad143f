#!/usr/bin/env bash
# Runs tests: hack/test.sh [all|unit|api|kernel|parity|ipvs|faults|e2e|images|race]
#
#   unit    packages whose tests need neither an API server nor root
#   api     packages whose tests start a real API server
#   kernel  packages whose tests program the real kernel; what needs root is
#           left out for an ordinary user, and named at the end
#   parity  the rules of kube-proxy and of nodeproxy-agent side by side; variables
#           say which worlds and how many, see docs/parity.md
#   ipvs    mode IPVS with a real API server and connections, and side by side with
#           kube-proxy's; where this kernel has no IPVS, in User-mode Linux
#   faults  what happens when something fails, while connections are made;
#           variables say which faults, see docs/faults.md
#   e2e     nodeproxy on real clusters, from its installation to its removal
#   images  the container images, written twice, and what runs from them
#   race    unit, api and kernel but for the packages of test/, with the race
#           detector
#   all     unit, images, api, kernel, parity, ipvs, faults, e2e, and the demo
#
# A package belongs where its test files say: they name envtest or
# KUBEBUILDER_ASSETS (api), or ask for root or import test/cluster (kernel).
# TESTFLAGS is given to go test, as in TESTFLAGS='-run TestPlan'.
#
# All but units wait for other processes, and how long that takes depends on what
# else the machine does. One that fails is run once more, alone; if it passes
# then, that is told at the end (RETRIED), with what it said the first time.
# RETRY=0 leaves that out. Panics, data races, and connections lost where none may
# be, fail at once.
set -euo pipefail
cd "$(dirname "$0")/.."

export PATH="$PATH:/usr/sbin:/sbin"
export GINKGO_NO_COLOR=1

what=${1:-all}
if ! command -v go >/dev/null; then
	echo "go is not on PATH. With sudo, keep your PATH: sudo env PATH=\"\$PATH\" make test" >&2
	exit 1
fi

# packages_with PATTERN prints the packages with test files that hold PATTERN.
packages_with() {
	local folder files
	go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}' ./... |
		while read -r package folder; do
			files=("$folder"/*_test.go)
			if grep -qE "$1" "${files[@]}"; then
				echo "$package"
			fi
		done
}

# without LIST prints standard input but for the lines of LIST.
without() {
	grep -vxF -f <(printf '%s\n' "$1") || true
}

# outside_test prints standard input but for packages under test/.
outside_test() {
	grep -v '/nodeproxy/test/' || true
}

api=$(packages_with 'controller-runtime/pkg/envtest"|KUBEBUILDER_ASSETS')
parity=$(go list ./test/parity)
# Two run at a time: the one that takes longest comes first.
ipvs=$(go list ./test/ipvs/parity ./test/ipvs/...)
faults=$(go list ./test/faults)
e2e=$(go list ./test/e2e)
kernel=$(packages_with 'os\.Geteuid\(\)|needs root|nodeproxy/test/cluster"' | without "$api" | without "$parity" | without "$ipvs" | without "$faults" | without "$e2e")
unit=$(packages_with '' | without "$api" | without "$kernel" | without "$parity" | without "$ipvs" | without "$faults" | without "$e2e")

temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
go build -o "$temp/testreport" ./hack/testreport
status=0
retry=()
if [[ ${RETRY:-1} != 0 ]]; then
	retry=(-again)
fi
# What is random in the faults is the same when one of them is repeated.
export FAULTS_SEED=${FAULTS_SEED:-$((RANDOM + 1))}

# report FLAGS... runs go test by testreport.
report() { "$temp/testreport" -left-out "$temp/left-out" -summary "$temp/summary" -show '|' "$@" || status=1; }

# run TITLE PACKAGES FLAGS... -- FLAGS... tests packages, with flags of testreport
# and then of go test, and remembers a failure, so that one run tells of
# everything that is wrong.
run() {
	local title=$1 packages=$2
	shift 2
	if [[ -z $packages ]]; then
		return
	fi
	echo
	echo "== $title"
	# The flags and packages are lists of words.
	# shellcheck disable=SC2086
	report "$@" ${TESTFLAGS:-} -- $packages
}

run_unit() { run "units" "$unit" --; }

# need_api builds the programs of the API server unless they are given.
need_api() {
	if [[ -z ${KUBEBUILDER_ASSETS:-} ]]; then
		echo
		echo "== programs of the API server"
		KUBEBUILDER_ASSETS=$(go run ./test/cluster/cmd/binaries)
		export KUBEBUILDER_ASSETS
		echo "$KUBEBUILDER_ASSETS"
	fi
}

run_api() {
	need_api
	run "against a real API server" "$api" "${retry[@]}" -- -p 2
}

# run_race leaves out test/: its packages run our programs, built without the
# race detector, or look at schemas alone.
run_race() {
	run "units, with the race detector" "$(printf '%s\n%s\n' "$unit" "$kernel" | outside_test)" "${retry[@]}" -- -race
	need_api
	run "against a real API server, with the race detector" "$(outside_test <<<"$api")" "${retry[@]}" -- -race -p 2
}

# The kernel is no input that go test knows of, so its results are not cached.
# Tests of nodes wait more than they work: several run side by side.
run_kernel() { run "on the real kernel" "$kernel" "${retry[@]}" -- -p 1 -count 1 -timeout 30m -parallel 3; }

run_parity() { run "side by side with kube-proxy" "$parity" "${retry[@]}" -- -count 1 -timeout 60m; }

# Each package has a kernel of its own, with one processor and up to 4 GiB of memory.
run_ipvs() { run "mode IPVS" "$ipvs" "${retry[@]}" -- -p 2 -count 1 -timeout 30m; }

# Faults take long and need little of the machine: several run side by side. One
# fault fails by itself, so it is repeated by itself.
run_faults() { run "faults" "$faults" "${retry[@]}" -subtests -- -count 1 -timeout 30m -parallel 3; }

# Each test has a cluster of its own, and takes what there is of the machine.
run_e2e() { run "on real clusters" "$e2e" "${retry[@]}" -- -count 1 -timeout 30m; }

# The images are a module of their own, see hack/images/go.mod.
run_images() {
	echo
	echo "== container images"
	cd hack/images
	report -- -count 1 -- ./...
	cd ../..
}

# run_demo runs the whole way once more, as a user sees it.
run_demo() {
	if [[ $(id -u) -ne 0 ]]; then
		echo "make demo: needs root" >>"$temp/left-out"
		return
	fi
	echo
	echo "== the demo"
	make --no-print-directory demo || status=1
}

case $what in
unit) run_unit ;;
api) run_api ;;
kernel)
	hack/install-packages.sh real-nodes
	run_kernel
	;;
parity)
	hack/install-packages.sh
	run_parity
	;;
ipvs)
	hack/install-packages.sh
	run_ipvs
	;;
faults)
	hack/install-packages.sh
	run_faults
	;;
e2e)
	hack/install-packages.sh real-nodes
	run_e2e
	;;
images) run_images ;;
race)
	hack/install-packages.sh
	run_race
	;;
all)
	hack/install-packages.sh real-nodes
	run_unit
	run_images
	run_api
	run_kernel
	run_parity
	run_ipvs
	run_faults
	run_e2e
	run_demo
	;;
*)
	echo "hack/test.sh: unknown kind of tests: $what; use all, unit, api, kernel, parity, ipvs, faults, e2e, images or race" >&2
	exit 2
	;;
esac

echo
if [[ -s $temp/left-out ]]; then
	echo "Left out:"
	sort -u "$temp/left-out"
	if [[ $(id -u) -ne 0 ]]; then
		echo "To run what needs root: sudo env PATH=\"\$PATH\" make test"
	fi
fi
if [[ -s $temp/summary ]]; then
	echo "Failed, or passed only when run again (RETRIED); the whole output is above:"
	cat "$temp/summary"
fi
if [[ $status -ne 0 ]]; then
	echo "Some tests failed; they are named FAIL above." >&2
fi
exit "$status"
