#!/usr/bin/env bash
# Writes the OLM bundle, bundle/ and bundle.Dockerfile, from config. Variables:
#
#   RELEASE           the version, as in 0.1.0
#   CHANNEL           the channel of the catalog
#   CONTROLLER_IMAGE  the images; for a release by digest, as in
#   AGENT_IMAGE       registry.example.com/infra/nodeproxy-agent@sha256:...
#   REPLACES          the replaced version, for catalogs that read it from the bundle
#   BUNDLE_OUTPUT     another output directory
set -euo pipefail
cd "$(dirname "$0")/.."

BUNDLE_OUTPUT=${BUNDLE_OUTPUT:-.}
mkdir -p "$BUNDLE_OUTPUT"
hack/tool.sh kustomize build config/manifests |
	go run ./hack/bundle \
		-out "$BUNDLE_OUTPUT" \
		-release "${RELEASE:?give RELEASE, as make bundle does}" \
		-channel "${CHANNEL:?give CHANNEL, as make bundle does}" \
		-controller-image "${CONTROLLER_IMAGE:?give CONTROLLER_IMAGE, as make bundle does}" \
		-agent-image "${AGENT_IMAGE:?give AGENT_IMAGE, as make bundle does}" \
		-replaces "${REPLACES:-}" \
		-icon config/manifests/icon.svg \
		-scorecard config/scorecard/config.yaml \
		-example config/samples/nodeproxy-audit.yaml \
		-example config/samples/nodeproxypolicy-gateway-conntrack.yaml \
		-example config/samples/serviceproxypolicy-team-source-ranges.yaml
echo "$BUNDLE_OUTPUT/bundle: nodeproxy $RELEASE for channel $CHANNEL, images $CONTROLLER_IMAGE and $AGENT_IMAGE."
