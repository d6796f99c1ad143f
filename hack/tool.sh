#!/usr/bin/env bash
# Runs a tool in the version that hack/tools/NAME pins: hack/tool.sh NAME ARGS...
# It is built once into the user's cache directory, which all clones share.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

if [[ $# -eq 0 || ! -f $root/hack/tools/$1/go.mod ]]; then
	echo "hack/tool.sh: give the name of a tool: $(cd "$root/hack/tools" && echo *)" >&2
	exit 2
fi
name=$1
shift
module=$root/hack/tools/$name
package=$(awk '$1 == "tool" { print $2 }' "$module/go.mod")
# The tool's module is the one with the longest prefix of its package's path.
version=$(awk -v package="$package" '
	{ path = $1 == "require" ? $2 : $1; found = $1 == "require" ? $3 : $2 }
	found ~ /^v/ && index(package "/", path "/") == 1 && length(path) > longest { longest = length(path); version = found }
	END { print version }' "$module/go.mod")
key=$(cat "$module/go.mod" "$module/go.sum" <(go env GOVERSION GOOS GOARCH) | sha256sum | cut -c 1-10)
directory=${XDG_CACHE_HOME:-$HOME/.cache}/nodeproxy/bin/$name-$version-$key

if [[ ! -x $directory/$name ]]; then
	echo "Building $name $version from its Go module into $directory; this takes up to 4 minutes on two cores, once." >&2
	mkdir -p "$directory"
	temp=$(mktemp -d "$directory/.build-XXXXXX")
	trap 'rm -rf "$temp"' EXIT
	(cd "$module" && CGO_ENABLED=0 GOFLAGS=-mod=readonly GOWORK=off go build -trimpath -buildvcs=false \
		-ldflags "-s -w -X main.version=$version" -o "$temp/$name" "$package")
	mv "$temp/$name" "$directory/$name"
	rm -rf "$temp"
	trap - EXIT
fi
exec "$directory/$name" "$@"
