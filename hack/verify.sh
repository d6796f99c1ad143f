#!/usr/bin/env bash
# Fails if a generated file, the formatting or go.mod is not up to date, and regenerates
# generated files.
set -euo pipefail
cd "$(dirname "$0")/.."

generated() {
	find api config docs/api.md bundle bundle.Dockerfile \
		\( -name 'zz_generated.*' -o -path 'config/crd/bases/*' -o -name '*_role.yaml' -o -path docs/api.md -o -path 'bundle*' \) -type f \
		-exec sha256sum {} + | sort -k 2
}

temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
failed=0

echo "Generated files ..."
generated >"$temp/before"
hack/generate.sh
# Build the committed bundle, regardless of images in the environment or make's command line
# (MAKEFLAGS).
env -u MAKEFLAGS -u MAKEOVERRIDES -u IMAGE_REGISTRY -u CONTROLLER_IMAGE -u AGENT_IMAGE -u CHANNEL -u REPLACES -u BUNDLE_OUTPUT make --no-print-directory bundle
generated >"$temp/after"
if ! diff "$temp/before" "$temp/after" >"$temp/diff"; then
	echo "These generated files were out of date; commit the output of make generate and make bundle:" >&2
	sed -n 's/^[<>] [0-9a-f]*  /  /p' "$temp/diff" | sort -u >&2
	failed=1
fi

# docs/release.md describes config/crd/released.
echo "CRDs compared with the last release ..."
if ! go run ./hack/crdcompat config/crd/released config/crd/bases >"$temp/crds"; then
	cat "$temp/crds" >&2
	echo "These changes of CRDs break users of the last release. Revert them, or accept them, with the reason, in config/crd/released/accepted.txt." >&2
	failed=1
fi

echo "The version of the release ..."
if ! make --no-print-directory release-check FINAL= >"$temp/release"; then
	cat "$temp/release" >&2
	failed=1
fi

echo "Formatting ..."
unformatted=$(find . -name '*.go' -not -path './bin/*' -exec gofmt -l {} +)
if [[ -n $unformatted ]]; then
	printf 'These files are not formatted; run make fmt:\n%s\n' "$unformatted" >&2
	failed=1
fi

# The images' program is a separate module. go vet is part of make lint.
for module in . hack/images; do
	echo "go.mod in $module ..."
	if ! go -C "$module" mod tidy -diff >"$temp/tidy"; then
		grep -E '^(diff|[+-])' "$temp/tidy" | sed -n 1,30p
		echo "go.mod or go.sum in $module is not tidy; run go mod tidy there." >&2
		failed=1
	fi
done
exit "$failed"
