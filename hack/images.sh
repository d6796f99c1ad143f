#!/usr/bin/env bash
# Writes the container images as docker-archives, without a container engine:
# dist/images/nodeproxy-controller.tar and dist/images/nodeproxy-agent.tar.
#
#   IMAGE_REGISTRY  what their names begin with (nodeproxy.io)
#   VERSION         their tag, and the version that the programs tell
#   GOARCH          the processor that they are for (this machine's)
#   REFRESH=1       gets Debian's packages anew; otherwise they are kept in the
#                   user's cache folder until hack/images/debian-root.sh changes
#   OUT             the folder that they are written to (dist/images)
#   DEBIAN_MIRROR   where the packages come from: a URL, a line of sources.list or a
#                   file of such lines
set -euo pipefail
cd "$(dirname "$0")/.."

registry=${IMAGE_REGISTRY:-nodeproxy.io}
version=${VERSION:?give VERSION, as make images does}
architecture=$(go env GOARCH)
revision=$(git rev-parse HEAD 2>/dev/null || true)
created=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
out=${OUT:-dist/images}
mkdir -p "$out"

# debian_root prints the folder with the root file system of the agent's image.
debian_root() {
	local key folder temp
	key=$(printf '%s\n' "${DEBIAN_MIRROR:-}" | cat - hack/images/debian-root.sh | sha256sum | cut -c 1-10)
	folder=${XDG_CACHE_HOME:-$HOME/.cache}/nodeproxy/images/debian-$architecture-$key
	if [[ ! -d $folder || -n ${REFRESH:-} ]]; then
		hack/install-packages.sh mmdebstrap >&2
		mkdir -p "$(dirname "$folder")"
		temp=$(mktemp -d "$folder.XXXXXX")
		hack/images/debian-root.sh "$architecture" "$temp/root" >&2
		rm -rf "$folder"
		# Where somebody else has made it meanwhile, theirs is as good.
		mv -T "$temp/root" "$folder" 2>/dev/null || [[ -d $folder ]]
		rm -rf "$temp"
	elif [[ -n $(find "$folder" -maxdepth 0 -mtime +7) ]]; then
		echo "Debian's packages are those of $(date -r "$folder" +%F); REFRESH=1 gets them anew." >&2
	fi
	echo "$folder"
}

# image writes one: image NAME DESCRIPTION FLAGS...
image() {
	local name=$1 description=$2
	shift 2
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$version" \
		-o "$programs/$name" "./cmd/$name"
	"$programs/images" -archive "$out/$name.tar" -name "$registry/$name:$version" \
		-program "$programs/$name" -architecture "$architecture" \
		-title "$name" -description "$description" \
		-version "$version" -revision "$revision" -created "$created" "$@"
}

programs=$(mktemp -d)
trap 'rm -rf "$programs"' EXIT
echo "Writing the images for $architecture into $out; the first time this takes two or three minutes."
(cd hack/images && GOARCH='' GOOS='' GOWORK=off CGO_ENABLED=0 go build -buildvcs=false -o "$programs/images" .)
export GOOS=linux
image nodeproxy-controller "Renders Services into the objects that nodeproxy's agents program" -user 65532:65532
root=$(debian_root)
image nodeproxy-agent "Programs one node's kernel for Services, in kube-proxy's place" -root "$root"
