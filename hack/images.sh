#!/usr/bin/env bash
# Writes the container images as docker-archives, without a container engine:
# dist/images/nodeproxy-controller.tar and dist/images/nodeproxy-agent.tar. Beside
# each, NAME.cdx.json is its SBOM (CycloneDX).
#
#   IMAGE_REGISTRY  the prefix of their names (default nodeproxy.io)
#   VERSION         their tag, and the version that the programs report
#   GOARCH          the architecture (default: this machine's)
#   OUT             the output directory (default dist/images)
#   DEBIAN_MIRROR   the source of packages: a URL, a line of sources.list, or a file of
#                   such lines
#   REFRESH=1       pins Debian's current versions in
#                   hack/images/packages.ARCHITECTURE.lock; commit that file
#   STALE_PACKAGES=warn
#                   for tests: replaces pinned versions that the mirror no longer has
#                   by current ones, with a warning instead of an error
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

registry=${IMAGE_REGISTRY:-nodeproxy.io}
version=${VERSION:?give VERSION, as make images does}
architecture=$(go env GOARCH)
revision=$(git rev-parse HEAD 2>/dev/null || true)
created=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
out=${OUT:-dist/images}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/nodeproxy/images
mkdir -p "$out"

# debian_root prints the directory with the root file system of the agent's image. It stays
# in the user's cache directory until the package list, lock or mirror changes.
debian_root() {
	local directory temp=
	if [[ -n ${REFRESH:-} ]]; then
		temp=$(new_root)
	fi
	directory=$cache/debian-$architecture-$(printf '%s\n' "${DEBIAN_MIRROR:-}" | cat - hack/images/debian-root.sh hack/images/packages.*.lock | sha256sum | cut -c 1-10)
	if [[ -z $temp ]] && ! usable "$directory"; then
		temp=$(new_root)
	fi
	if [[ -n $temp ]]; then
		if [[ -n ${REFRESH:-} ]] || ! usable "$directory"; then
			rm -rf "$directory"
		fi
		mv "$temp/root.notes" "$directory.notes"
		# Another process may have created it meanwhile: it is identical.
		mv -T "$temp/root" "$directory" 2>/dev/null || [[ -d $directory ]]
		rm -rf "$temp"
	elif [[ -n $(find "$directory" -maxdepth 0 -mtime +7) ]]; then
		echo "NOTE: the last check for newer Debian packages was on $(date -r "$directory" +%F); make images REFRESH=1 checks and pins them." >&2
	fi
	cat "$directory.notes" >&2
	echo "$directory"
}

new_root() {
	local temp
	hack/install-packages.sh mmdebstrap >&2
	mkdir -p "$cache"
	temp=$(mktemp -d "$cache/.root-XXXXXX")
	if ! hack/images/debian-root.sh "$architecture" "$temp/root" >&2; then
		rm -rf "$temp"
		return 1
	fi
	echo "$temp"
}

# usable DIRECTORY reports whether it has the pinned versions, unless others are accepted.
usable() {
	[[ -d $1 && -f $1.notes ]] && { [[ ${STALE_PACKAGES:-} == warn ]] || ! grep -q '^WARNING' "$1.notes"; }
}

# image writes an image: image NAME DESCRIPTION FLAGS...
image() {
	local name=$1 description=$2
	shift 2
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$version" \
		-o "$programs/$name" "./cmd/$name"
	rm -f "$out/$name.cdx.json" # the old archive's
	"$programs/images" -archive "$out/$name.tar" -name "$registry/$name:$version" \
		-program "$programs/$name" -architecture "$architecture" \
		-title "$name" -description "$description" \
		-version "$version" -revision "$revision" -created "$created" "$@"
	[[ $1 == -root ]] || set --
	"$programs/sbom" -archive "$out/$name.tar" -type container -name "$name" -version "$version" \
		-created "$created" -program "$programs/$name" -out "$out/$name.cdx.json" "$@"
}

programs=$(mktemp -d)
trap 'rm -rf "$programs"' EXIT
echo "Writing the images for $architecture into $out; the first time this takes two or three minutes."
(cd hack/images && GOARCH='' GOOS='' GOWORK=off CGO_ENABLED=0 go build -buildvcs=false -o "$programs/" . ./sbom)
export GOOS=linux
image nodeproxy-controller "Renders Services into the objects that nodeproxy's agents program" -user 65532:65532
root=$(debian_root)
image nodeproxy-agent "Programs one node's kernel for Services, in kube-proxy's place" -root "$root"
