#!/usr/bin/env bash
# Writes the kubectl plugin to dist/plugin: for each platform an archive and its bill of
# materials (NAME.cdx.json, CycloneDX), and nodeproxy.yaml, the manifest for krew. The
# files are reproducible. Variables:
#
#   VERSION           the version of the plugin; krew requires vX.Y.Z
#   PLUGIN_URL        the download location of the archives
#   PLUGIN_OUTPUT     another output directory
#   PLUGIN_PLATFORMS  instead of all in hack/plugin/platforms, as in "linux/amd64 darwin/arm64"
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION=${VERSION:?set the version of the plugin}
PLUGIN_URL=${PLUGIN_URL:-https://github.com/nodeproxy-io/nodeproxy/releases/download/$VERSION}
PLUGIN_OUTPUT=${PLUGIN_OUTPUT:-dist/plugin}
platforms=${PLUGIN_PLATFORMS:-$(<hack/plugin/platforms)}
if [[ -z ${platforms//[[:space:]]/} ]]; then
	echo "hack/plugin.sh: PLUGIN_PLATFORMS is blank: name platforms as in hack/plugin/platforms, or unset it for all" >&2
	exit 1
fi

semver='^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$'
if [[ ! $VERSION =~ $semver ]]; then
	echo "hack/plugin.sh: VERSION is \"$VERSION\": krew accepts only versions such as v0.1.0, so its manifest needs a release" >&2
fi

mkdir -p "$PLUGIN_OUTPUT"
rm -f "$PLUGIN_OUTPUT"/kubectl-nodeproxy_*.{tar.gz,cdx.json} "$PLUGIN_OUTPUT/nodeproxy.yaml"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd hack/images && GOARCH='' GOOS='' GOWORK=off CGO_ENABLED=0 go build -buildvcs=false -o "$work/sbom" ./sbom)
created=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}

selectors=""
for platform in $platforms; do
	os=${platform%/*} arch=${platform#*/}
	program=kubectl-nodeproxy
	[[ $os != windows ]] || program+=.exe
	directory=$work/$os-$arch
	mkdir "$directory"
	CGO_ENABLED=0 GOOS=$os GOARCH=$arch go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION" \
		-o "$directory/$program" ./cmd/kubectl-nodeproxy
	cp LICENSE hack/plugin/kubectl_complete-nodeproxy "$directory"
	chmod 755 "$directory"/kubectl*
	chmod 644 "$directory/LICENSE"
	archive=kubectl-nodeproxy_${os}_$arch.tar.gz
	tar --create --directory "$directory" --sort name --mtime @0 --owner 0 --group 0 --numeric-owner --format ustar \
		LICENSE kubectl_complete-nodeproxy "$program" | gzip --no-name --best >"$PLUGIN_OUTPUT/$archive"
	"$work/sbom" -archive "$PLUGIN_OUTPUT/$archive" -name kubectl-nodeproxy -version "$VERSION" -created "$created" \
		-program "$directory/$program" -out "$PLUGIN_OUTPUT/${archive%.tar.gz}.cdx.json"
	selectors+="  - selector: {matchLabels: {os: $os, arch: $arch}}
    uri: $PLUGIN_URL/$archive
    sha256: $(sha256sum "$PLUGIN_OUTPUT/$archive" | cut -d ' ' -f 1)
    bin: $program
"
done

cat >"$PLUGIN_OUTPUT/nodeproxy.yaml" <<END
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: nodeproxy
spec:
  version: $VERSION
  homepage: https://github.com/nodeproxy-io/nodeproxy
  shortDescription: Find out why a Service is unreachable
  description: |
    Shows how nodeproxy serves the Services of a cluster: the state of all nodes,
    their desired rules and reports, the path of a packet, and problems with
    remedies. It only reads.
  caveats: |
    You need the ClusterRoles nodeproxy-viewer and view, bound cluster-wide.
  platforms:
$selectors
END
sed -i '$ d' "$PLUGIN_OUTPUT/nodeproxy.yaml"
echo "$PLUGIN_OUTPUT has the archives, their SBOMs and nodeproxy.yaml."
