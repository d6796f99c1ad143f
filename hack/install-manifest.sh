#!/usr/bin/env bash
# Writes dist/install.yaml: config/default with the images of one version. Variables:
#
#   VERSION          the tag of both images
#   IMAGE_REGISTRY   the prefix of their names, such as registry.example.com/infra
#   API_SERVERS      URLs of the API servers, separated by spaces, for a cluster without a
#                    proxy; if empty, the manifest names none
#   COMPONENTS       directories of config to add: grafana, prometheus, prometheus-mixin,
#                    single-node
#   MANIFEST_OUTPUT  another output file
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION=${VERSION:?set the version of the images}
IMAGE_REGISTRY=${IMAGE_REGISTRY:-nodeproxy.io}
IMAGE_REGISTRY=${IMAGE_REGISTRY%/}
MANIFEST_OUTPUT=${MANIFEST_OUTPUT:-dist/install.yaml}

fail() {
	echo "hack/install-manifest.sh: $*" >&2
	exit 1
}

if [[ ! $VERSION =~ ^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$ ]]; then
	fail "VERSION is \"$VERSION\", which cannot be the tag of an image: letters, digits and . _ - only"
fi

mkdir -p dist
overlay=$(mktemp -d dist/.install-XXXXXX)
trap 'rm -rf "$overlay"' EXIT

{
	cat <<-END
		apiVersion: kustomize.config.k8s.io/v1beta1
		kind: Kustomization
		resources:
		- ../../config/default
	END
	if [[ -n ${API_SERVERS:-} ]]; then
		echo "- api-servers.yaml"
	fi
	if [[ -n ${COMPONENTS:-} ]]; then
		echo "components:"
		for component in $COMPONENTS; do
			if ! grep -qs '^kind: Component$' "config/$component/kustomization.yaml"; then
				fail "COMPONENTS names \"$component\", which is none; there are: $(grep -lx 'kind: Component' config/*/kustomization.yaml | xargs -n 1 dirname | xargs -n 1 basename | xargs)"
			fi
			echo "- ../../config/$component"
		done
	fi
	cat <<-END
		images:
		- name: nodeproxy.io/nodeproxy-controller
		  newName: $IMAGE_REGISTRY/nodeproxy-controller
		  newTag: "$VERSION"
		patches:
		- patch: |-
		    apiVersion: apps/v1
		    kind: Deployment
		    metadata:
		      name: nodeproxy-controller
		      namespace: nodeproxy-system
		    spec:
		      template:
		        spec:
		          containers:
		          - name: controller
		            env:
		            - name: RELATED_IMAGE_AGENT
		              value: $IMAGE_REGISTRY/nodeproxy-agent:$VERSION
	END
} >"$overlay/kustomization.yaml"

if [[ -n ${API_SERVERS:-} ]]; then
	{
		cat <<-END
			# Where the API servers are, until the controller knows it from the cluster.
			apiVersion: v1
			kind: ConfigMap
			metadata:
			  name: nodeproxy-api-servers
			  namespace: nodeproxy-system
			data:
			  endpoints: |
		END
		for server in $API_SERVERS; do
			if [[ ! $server =~ ^https://[^/[:space:]]+/?$ ]]; then
				fail "API_SERVERS holds \"$server\", which is not a URL like https://192.0.2.10:6443"
			fi
			echo "    $server"
		done
	} >"$overlay/api-servers.yaml"
fi

hack/tool.sh kustomize build "$overlay" >"$overlay/install.yaml"
mv "$overlay/install.yaml" "$MANIFEST_OUTPUT"
echo "$MANIFEST_OUTPUT: nodeproxy $VERSION, images of $IMAGE_REGISTRY."
