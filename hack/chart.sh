#!/usr/bin/env bash
# Writes the Helm chart, dist/nodeproxy-VERSION.tgz, for the images of one version. The same commit gives the
# same bytes. Variables:
#
#   VERSION          the tag of both images
#   RELEASE          the version of the chart if VERSION is not a release: this one, marked as its prerelease
#   IMAGE_REGISTRY   the prefix of the images' names, such as registry.example.com/infra
#   CHART_OUTPUT     another output directory
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION=${VERSION:?give VERSION, as make chart does}
RELEASE=${RELEASE:?give RELEASE, as make chart does}
IMAGE_REGISTRY=${IMAGE_REGISTRY:-nodeproxy.io}
CHART_OUTPUT=${CHART_OUTPUT:-dist}

if [[ ! $VERSION =~ ^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$ ]]; then
	echo "hack/chart.sh: VERSION is \"$VERSION\", which cannot be the tag of an image: letters, digits and . _ - only" >&2
	exit 1
fi
# Helm requires a semantic version. "dev-" keeps a commit's digits from being a number with leading zeros.
version=$RELEASE-dev-${VERSION//[._]/-}
if [[ $VERSION =~ ^v?([0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?)$ ]]; then
	version=${BASH_REMATCH[1]}
fi

mkdir -p "$CHART_OUTPUT"
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
cp -rL charts/nodeproxy "$temp/nodeproxy"
sed -i "s|^  registry: nodeproxy.io$|  registry: ${IMAGE_REGISTRY%/}|" "$temp/nodeproxy/values.yaml"
# The archive has the files' times.
find "$temp/nodeproxy" -exec touch -d "@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}" {} +
hack/tool.sh helm package "$temp/nodeproxy" --version "$version" --app-version "$VERSION" --destination "$temp" >/dev/null
mv "$temp/nodeproxy-$version.tgz" "$CHART_OUTPUT/"
echo "$CHART_OUTPUT/nodeproxy-$version.tgz: nodeproxy $VERSION, images of ${IMAGE_REGISTRY%/}."
