#!/usr/bin/env bash
# Runs tests: hack/test.sh [all|unit|api|kernel|race]
#
#   unit    packages whose tests need neither an API server nor root
#   api     packages whose tests start a real API server
#   kernel  packages whose tests program the real kernel; what needs root is
#           left out for an ordinary user, and named at the end
#   race    unit, api and kernel but for the packages of test/, with the race
#           detector
#   all     unit, api, kernel, and the demo
#
# A package belongs where its test files say: they name envtest or
# KUBEBUILDER_ASSETS (api), or ask for root or import test/cluster (kernel).
# TESTFLAGS is given to go test, as in TESTFLAGS='-run TestPlan'.
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
kernel=$(packages_with 'os\.Geteuid\(\)|needs root|nodeproxy/test/cluster"' | without "$api")
unit=$(packages_with '' | without "$api" | without "$kernel")

temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
go build -o "$temp/testreport" ./hack/testreport
status=0

# run TITLE PACKAGES FLAGS... tests packages and remembers a failure, so that
# one run tells of everything that is wrong.
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
	go test -json "$@" ${TESTFLAGS:-} $packages | "$temp/testreport" -left-out "$temp/left-out" || status=1
}

run_unit() { run "units" "$unit"; }

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
	run "against a real API server" "$api" -p 1
}

# run_race leaves out test/: its packages run our programs, built without the
# race detector, or look at schemas alone.
run_race() {
	run "units, with the race detector" "$(printf '%s\n%s\n' "$unit" "$kernel" | outside_test)" -race
	need_api
	run "against a real API server, with the race detector" "$(outside_test <<<"$api")" -race -p 1
}

# The kernel is no input that go test knows of, so its results are not cached.
run_kernel() { run "on the real kernel" "$kernel" -p 1 -count 1 -timeout 30m; }

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
	hack/install-packages.sh
	run_kernel
	;;
race)
	hack/install-packages.sh
	run_race
	;;
all)
	hack/install-packages.sh
	run_unit
	run_api
	run_kernel
	run_demo
	;;
*)
	echo "hack/test.sh: unknown kind of tests: $what; use all, unit, api, kernel or race" >&2
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
if [[ $status -ne 0 ]]; then
	echo "Some tests failed; they are named FAIL above." >&2
fi
exit "$status"
