#!/usr/bin/env bash
# Runs tests: hack/test.sh [quick|all|long|unit|api|kernel|parity|ipvs|faults|e2e|images|race|times|demo|speed|tenants|fuzz|soak|oldest|raced-faults]
#
#   quick   what a newcomer runs: unit, api, kernel without whole nodes, and the demo
#   all     what gates a change: everything below except the last four, with the race detector for
#           tests that run in one process
#   long    what a release needs besides: see run_long
#
#   unit    packages whose tests need neither an API server nor root
#   api     packages whose tests start a real API server
#   kernel  packages whose tests program the real kernel
#   parity  the rules of kube-proxy and nodeproxy-agent compared; see test/parity/doc.go for
#           variables
#   ipvs    mode IPVS with a real API server and connections, and compared with kube-proxy's; in
#           User-mode Linux if this kernel has no IPVS
#   faults  faults under load; docs/faults.md lists the variables
#   e2e     nodeproxy on real clusters, from its installation to its removal
#   images  the container images, written twice, and their programs
#   race    tests of unit, api and kernel that run in one process, with the race detector
#   times   those of them that judge times, which the race detector would make longer
#   demo    make demo
#   speed   how long users wait, and what a cluster of 500 nodes costs the API server: at most a few times
#           as much as typical
#   tenants one tenant attacks and must not harm another
#   fuzz    each fuzz target for FUZZTIME (30s)
#   soak    continuous changes for SOAK (10m), under load
#   oldest  the API, the manifests and the demo on the oldest supported Kubernetes
#   raced-faults
#           the faults, with an agent and a controller that report data races
#
# A package's test files decide its suite: they use envtest, test/apiserver or KUBEBUILDER_ASSETS
# (api), or ask for root or import test/cluster (kernel).
# TESTFLAGS is passed to go test, as in TESTFLAGS='-run TestPlan'.
#
# Tests that wait for other processes can time out on a busy machine. A failed test of kernel,
# parity, ipvs, faults or e2e below test/ is repeated once, alone, and reported as RETRIED if it then
# passes; tenants repeats single attacks itself. RETRY=0 disables this. Never repeated: quick, tests
# with the race detector, panics, data races, and lost connections. More than two retried tests fail
# the run. As root, so does a skipped test that is not in
# hack/testreport/skips.
set -euo pipefail
cd "$(dirname "$0")/.."

export PATH="$PATH:/usr/sbin:/sbin"
export GINKGO_NO_COLOR=1
# As in the Makefile: programs, vet and lint share what is compiled, in all clones.
[[ ${GOFLAGS:-} == *-trimpath* ]] || export GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath -buildvcs=false"
export CGO_ENABLED=${CGO_ENABLED:-0}
# A Debian update must not fail an unrelated change: hack/images.sh.
export STALE_PACKAGES=${STALE_PACKAGES-warn}

what=${1:-quick}
if ! command -v go >/dev/null; then
	echo "go is not on PATH. With sudo, keep your PATH: sudo env PATH=\"\$PATH\" make test" >&2
	exit 1
fi

# packages_with PATTERN prints the packages whose test files match PATTERN.
packages_with() {
	local dir files
	go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}' ./... |
		while read -r package dir; do
			files=("$dir"/*_test.go)
			if grep -qE "$1" "${files[@]}"; then
				echo "$package"
			fi
		done
}

# without LIST prints standard input except for the lines of LIST.
without() { grep -vxF -f <(printf '%s\n' "$1") || true; }

# matching and not_matching PATTERN print the packages whose path matches PATTERN, or the
# others.
matching() { grep -E "/nodeproxy/($1)(/|$)" || true; }
not_matching() { grep -vE "/nodeproxy/($1)(/|$)" || true; }

api=$(packages_with 'controller-runtime/pkg/envtest"|nodeproxy/test/apiserver"|KUBEBUILDER_ASSETS')
parity=$(go list ./test/parity)
# Two run at a time, the longest first.
ipvs=$(go list ./test/ipvs/parity ./test/ipvs/...)
faults=$(go list ./test/faults)
e2e=$(go list ./test/e2e)
speed=$(go list ./test/speed ./test/scale)
tenants=$(go list ./test/tenants)
soak=$(go list ./test/soak)
suites=$(printf '%s\n' "$parity" "$ipvs" "$faults" "$e2e" "$speed" "$tenants" "$soak")
kernel=$(packages_with 'os\.Geteuid\(\)|needs root|nodeproxy/test/cluster"' | without "$api" | without "$suites")
unit=$(packages_with '' | without "$api" | without "$kernel" | without "$suites")

# The packages whose tests run in one process, where the race detector works. The other
# packages of test/ start programs or read files.
raced='api|agent|cmd|controllers|hack|test/lifecycle|test/rollouts/simulated'
timed='^Test(Growth|TimeOf)'

temp=$(mktemp -d)
aside=
cleanup() {
	if [[ -n $aside ]]; then
		kill "$aside" 2>/dev/null && wait "$aside" || true
	fi
	rm -rf "$temp"
}
trap cleanup EXIT
go build -o "$temp/testreport" ./hack/testreport
status=0
not_run=
retry=()
if [[ ${RETRY:-1} != 0 ]]; then
	retry=(-again test/)
fi
# A repeated test gets the same random numbers.
export FAULTS_SEED=${FAULTS_SEED:-$((RANDOM + 1))} SIMULATED_SEED=${SIMULATED_SEED:-$((RANDOM + 1))}
export PARITY_SEED=${PARITY_SEED:-$((RANDOM + 1000))} IPVS_PARITY_SEED=${IPVS_PARITY_SEED:-$((RANDOM + 1000))}
# Of models beside the kernel. Only long draws: a new difference must not fail an unrelated change.
if [[ $what == long ]]; then
	export NODEPROXY_SEED=${NODEPROXY_SEED:-$((RANDOM + 1))}
else
	export NODEPROXY_SEED=${NODEPROXY_SEED:-1}
fi

# envtest's own 20 s are too short for several API servers beside a race detector.
export KUBEBUILDER_CONTROLPLANE_START_TIMEOUT=2m KUBEBUILDER_CONTROLPLANE_STOP_TIMEOUT=1m

# report FLAGS... runs go test without its cache, which does not notice changes of the
# kernel and of programs and files that tests use at run time.
report() { "$temp/testreport" run -records "$temp/records" -show '|' "$@" || status=1; }

# run_program NAME ARGUMENTS... runs another program, and fails the run if it fails.
run_program() {
	local name=$1
	shift
	"$temp/testreport" command -records "$temp/records" "$name" -- "$@" || status=1
}

# build_programs builds the programs of nodeproxy and of local clusters, once for all suites.
build_programs() {
	if [[ -z ${NODEPROXY_PROGRAMS:-} ]]; then
		export NODEPROXY_PROGRAMS=$temp/programs
		go build -o "$NODEPROXY_PROGRAMS/" ./cmd/... ./test/cluster/cmd/echo ./test/cluster/cmd/nodeinit ./test/cluster/cmd/pause
	fi
}

# run TITLE PACKAGES FLAGS... -- FLAGS... tests packages, with flags of testreport and then
# of go test, and remembers a failure: one run reports everything that is wrong. make lint runs
# vet, for which go test would analyze all dependencies.
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
	report "$@" -count 1 -vet off ${TESTFLAGS:-} -- $packages
}

# aside STAGE... runs a stage in the background; together waits for it and prints its
# output.
aside() {
	# A trap of its own would remove files that the others still use.
	(
		trap - EXIT
		"$@"
		exit "$status"
	) >"$temp/aside" 2>&1 &
	aside=$!
}

together() {
	wait "$aside" || status=1
	aside=
	cat "$temp/aside"
}

run_unit() { run "units" "$unit" --; }

# need_api FLAGS... provides the programs of the API server, and others, unless they are given.
need_api() {
	if [[ -z ${KUBEBUILDER_ASSETS:-} ]]; then
		echo
		echo "== programs of the API server"
		KUBEBUILDER_ASSETS=$(go run ./test/cluster/cmd/binaries "$@")
		export KUBEBUILDER_ASSETS
		echo "$KUBEBUILDER_ASSETS"
	fi
}

run_api() {
	need_api
	run "against a real API server" "$api" -- -p 3 -timeout 30m
}

# Those with an API server run alone: beside others it takes too long to answer.
run_race() {
	local -x CGO_ENABLED=1 # the race detector needs it
	run "units and the kernel, with the race detector" "$(printf '%s\n%s\n' "$unit" "$kernel" | matching "$raced")" -- -race -p 3 -timeout 30m -skip "$timed"
	need_api
	run "against a real API server, with the race detector" "$(matching "$raced" <<<"$api")" -- -race -p 2 -timeout 30m -skip "$timed"
}

# Runs alone.
run_times() { run "times" "$(packages_with "func ${timed#^}" | matching "$raced")" -- -run "$timed" -p 2; }

# Tests of nodes mostly wait, so several run in parallel.
run_kernel() { run "on the real kernel" "$kernel" "${retry[@]}" -- -p 2 -timeout 30m -parallel 3; }

run_parity() { run "side by side with kube-proxy" "$parity" "${retry[@]}" -- -timeout 60m; }

# Each package has its own kernel, with one processor and up to 4 GiB of memory.
run_ipvs() { run "mode IPVS" "$ipvs" "${retry[@]}" -- -p "${1:-2}" -timeout 30m; }

# run_aside takes one processor.
run_aside() {
	run_ipvs 1
	run_parity
}

# flushes_tlb reports whether each system call flushes the TLB, because the processor isolates page tables without
# PCID: programs that mostly make them take three times as long.
flushes_tlb() { ! grep -qw pcid /proc/cpuinfo && grep -q PTI /sys/devices/system/cpu/vulnerabilities/meltdown; }

# omit_slow_ipvs leaves out suites of mode IPVS that would run in User-mode Linux where flushes_tlb: those with a
# control plane, which takes more than two minutes to start, and all if there is only the installed kernel, in
# which they would time out.
omit_slow_ipvs() {
	if [[ -e /proc/net/ip_vs ]] || modprobe --quiet ip_vs || ! flushes_tlb; then
		return
	fi
	if compgen -G "${XDG_CACHE_HOME:-$HOME/.cache}/nodeproxy/linux.uml/*/linux.uml" >/dev/null; then
		not_run="test/ipvs, test/ipvs/parity"
		ipvs=$(grep -vE '/test/ipvs(/parity)?$' <<<"$ipvs")
	else
		not_run="test/ipvs/..."
		ipvs=
	fi
	not_run+=": this processor has no PCID, so User-mode Linux is too slow for them; run make test-ipvs"
}

# by_processor FAST SLOW prints SLOW where flushes_tlb.
by_processor() { if flushes_tlb; then echo "$2"; else echo "$1"; fi; }

# Each fault fails, and is repeated, alone. As many clusters run at a time as mostly wait.
run_faults() { run "faults" "$faults" "${retry[@]}" -subtests -- -timeout 30m -parallel "$(by_processor 5 3)"; }

run_e2e() { run "on real clusters" "$e2e" "${retry[@]}" -- -timeout 30m -parallel "$(by_processor 3 2)"; }

# The images' program is a separate module: hack/images/go.mod.
run_images() {
	echo
	echo "== container images"
	report -C hack/images -- -count 1 -- ./...
}

# run_demo runs what new users run first.
run_demo() {
	if [[ $(id -u) -ne 0 ]]; then
		echo "make demo: skipped, because it needs root"
		return
	fi
	echo
	echo "== the demo"
	run_program "make demo" make --no-print-directory demo
}

# run_demo_nftables is the demo in the mode that has no whole nodes among the kernel suites.
run_demo_nftables() {
	if [[ $(id -u) -eq 0 ]]; then
		run_program "the demo in mode NFTables" go run ./test/demo -bin "$NODEPROXY_PROGRAMS" -mode nftables
	fi
}

# Runs alone. A time beyond its bound is not measured again.
run_speed() { run "speed" "$speed" -- -p 1; }

# Runs alone, because it compares times.
run_tenants() {
	local -x TENANTS_SLOWER
	TENANTS_SLOWER=$(by_processor 3 5)
	run "tenants" "$tenants" -- -timeout 60m
}

# run_fuzz looks for input that breaks a parser, beyond the seeds that go test always runs.
run_fuzz() {
	local packages package targets target
	echo
	echo "== fuzzing"
	packages=$(packages_with '^func Fuzz')
	if [[ -z $packages ]]; then
		echo "FAIL  no package has a fuzz target"
		status=1
	fi
	for package in $packages; do
		# Among the words of a loop the exit status would be lost.
		if ! targets=$(go test -list '^Fuzz' "$package" | grep '^Fuzz'); then
			echo "FAIL  $package: its fuzz targets cannot be listed"
			status=1
			continue
		fi
		for target in $targets; do
			# Without a bound, minimizing takes most of the time.
			report -- -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-30s}" -fuzzminimizetime 100x -parallel 1 -- "$package"
		done
	done
}

# Nothing is repeated: a lost connection or grown memory is never a timeout.
run_soak() { run "soak" "$soak" -- -timeout 24h; }

# run_oldest checks that the oldest API server accepts and serves what we install.
run_oldest() {
	local -x NODEPROXY_KUBERNETES=oldest KUBEBUILDER_ASSETS=
	need_api
	run "on the oldest supported Kubernetes" "$(go list ./test/api ./test/manifests)" -- -p 2
	run_demo
}

# foreign_platforms prints the plugin's platforms with another operating system than this one.
foreign_platforms() { grep -v "^$(go env GOHOSTOS)/" hack/plugin/platforms; }

run_all() {
	need_api -kube-proxy -real-nodes # now, because builds would starve the suites that need them
	# The plugin for the first platform of each operating system; test-long builds it for all.
	PLUGIN_PLATFORMS="$(go env GOHOSTOS)/$(go env GOHOSTARCH) $(foreign_platforms | awk -F / '!seen[$1]++' | xargs)"
	export PLUGIN_PLATFORMS
	run_race
	run_times
	unit=$(not_matching "$raced" <<<"$unit")
	api=$(not_matching "$raced" <<<"$api")
	kernel=$(not_matching "$raced" <<<"$kernel")
	run_unit
	run_api
	run_speed
	run_tenants
	omit_slow_ipvs
	# One processor is for User-mode Linux, the other for suites that mostly wait. Nothing runs
	# beside faults and real clusters: some faults must be repaired within seconds, and servers that get no
	# processor for seconds lose datagrams.
	aside run_aside
	run_kernel
	run_demo
	run_demo_nftables
	run_images
	# Mode IPVS still takes one processor for minutes. If this fails, make lint reports it.
	nice hack/tool.sh golangci-lint version >/dev/null || true
	together
	run_e2e
	run_faults
}

run_quick() {
	need_api
	retry=() # who runs it should see what failed, not wait for more
	kernel=$(not_matching 'test/nodes|test/cluster' <<<"$kernel")
	run_unit
	run_api
	run_kernel
	run_demo
}

# run_long runs what test-all leaves out. Benchmarks need an otherwise idle machine; their rows
# depend on their arguments, which test/bench reads from here.
run_long() {
	need_api
	run_program "make bench" make --no-print-directory bench AGAINST=test/bench/ratios.json
	run_program "make bench MODE=nftables" make --no-print-directory bench MODE=nftables SIZES=5000x10 AGAINST=test/bench/ratios.json
	run_program "make bench MODE=ipvs" make --no-print-directory bench MODE=ipvs SIZES=1000 AGAINST=test/bench/ratios.json
	run_program "make demo MODE=userspace" make --no-print-directory demo MODE=userspace
	run_fuzz
	export PARITY_FULL=1
	run_parity
	run_ipvs
	run "models beside the kernel" "$(grep 'model$' <<<"$kernel")" --
	unset PLUGIN_PLATFORMS
	run "the plugin for every platform" "$(go list ./test/plugin)" --
	for platform in $(foreign_platforms); do # its tests, too, of which the gate builds none
		GOOS=${platform%/*} GOARCH=${platform#*/} run_program "go vet for $platform" go vet ./cmd/kubectl-nodeproxy/... ./agent/tracer
	done
	run_oldest
	run_soak
	TENANTS_LOOP=1m run_tenants # each attack for a minute
	run_raced_faults
	run_program "planted losses" hack/plant.sh
}

# run_raced_faults runs the faults with an agent and a controller that report data races,
# which test/cluster finds in their logs. clock-jumped and conntrack-full use other programs,
# without race detector.
run_raced_faults() {
	local programs=$NODEPROXY_PROGRAMS
	export NODEPROXY_PROGRAMS=$temp/raced
	cp -r "$programs" "$NODEPROXY_PROGRAMS"
	CGO_ENABLED=1 go build -race -o "$NODEPROXY_PROGRAMS/" ./cmd/nodeproxy-agent ./cmd/nodeproxy-controller
	run "faults, with the race detector" "$faults" -- -timeout 60m -parallel 2
	export NODEPROXY_PROGRAMS=$programs
}

case $what in
unit | images | fuzz) ;;
*)
	hack/install-packages.sh real-nodes
	# Who runs make test for the first time should not wait for a kernel.
	if [[ $what == quick ]]; then hack/pinned.sh nft; else hack/pinned.sh; fi
	build_programs
	;;
esac

case $what in
quick | all | long | unit | api | kernel | parity | ipvs | faults | e2e | images | race | times | demo | speed | tenants | fuzz | soak | oldest | raced-faults)
	"run_${what//-/_}"
	;;
*)
	echo "hack/test.sh: unknown kind of tests: $what; the kinds are at the top of the script" >&2
	exit 2
	;;
esac

echo
skips=(-skips hack/testreport/skips)
if [[ $what == all && -z ${TESTFLAGS:-} && -z $not_run ]]; then
	skips+=(-complete)
fi
if [[ $(id -u) -ne 0 ]]; then
	skips=()
fi
# times prints the CPU time of all processes that this script waited for in its last line, as
# in "2m52.193s 1m17.500s"; a subshell would print its own.
times >"$temp/times"
cpu=$(tail -n 1 "$temp/times")
"$temp/testreport" close -records "$temp/records" "${skips[@]}" -wall "${SECONDS}s" -user "${cpu%% *}" -system "${cpu##* }" || status=1
if [[ -n $not_run ]]; then
	echo "NOT RUN $not_run"
fi
if [[ $(id -u) -ne 0 ]]; then
	echo "To run what needs root: sudo env PATH=\"\$PATH\" make test"
fi
exit "$status"
