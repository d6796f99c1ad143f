#!/usr/bin/env bash
# Runs golangci-lint in the version that hack/tools/golangci-lint pins. It is
# built once into the user's cache folder, which all clones share.
set -euo pipefail
cd "$(dirname "$0")/.."

module=hack/tools/golangci-lint
version=$(awk '$1 == "github.com/golangci/golangci-lint/v2" { print $2 }' "$module/go.mod")
key=$(cat "$module/go.mod" "$module/go.sum" <(go env GOVERSION GOOS GOARCH) | sha256sum | cut -c 1-10)
folder=${XDG_CACHE_HOME:-$HOME/.cache}/nodeproxy/bin/golangci-lint-$version-$key

if [[ ! -x $folder/golangci-lint ]]; then
	echo "Building golangci-lint $version from its Go module; the first time this takes about 4 minutes on two cores. Kept in $folder for next time."
	mkdir -p "$folder"
	temp=$(mktemp -d "$folder/.build-XXXXXX")
	trap 'rm -rf "$temp"' EXIT
	(cd "$module" && CGO_ENABLED=0 GOFLAGS=-mod=readonly GOWORK=off go build -trimpath -buildvcs=false \
		-ldflags "-s -w -X main.version=$version" \
		-o "$temp/golangci-lint" github.com/golangci/golangci-lint/v2/cmd/golangci-lint)
	mv "$temp/golangci-lint" "$folder/golangci-lint"
	rm -rf "$temp"
	trap - EXIT
fi
exec "$folder/golangci-lint" run --allow-parallel-runners "$@" ./...
