#!/usr/bin/env bash
# Writes all generated files: defaults, deep copies, CRDs, RBAC roles and docs/api.md.
set -euo pipefail
cd "$(dirname "$0")/.."

# First, because the others load the package.
hack/tool.sh defaulter-gen \
	--go-header-file hack/boilerplate.go.txt \
	--output-file zz_generated.defaults.go \
	./api/v1alpha1

go tool controller-gen \
	object:headerFile=hack/boilerplate.go.txt \
	crd \
	paths=./api/... \
	output:crd:dir=config/crd/bases

# Separate roles for the controller and the agents, from the markers of their packages.
go tool controller-gen \
	rbac:roleName=nodeproxy-controller,fileName=controller_role.yaml \
	paths="./controllers/...;./cmd/nodeproxy-controller/..." \
	output:rbac:dir=config/rbac
go tool controller-gen \
	rbac:roleName=nodeproxy-agent,fileName=agent_role.yaml \
	paths="./agent/...;./cmd/nodeproxy-agent/..." \
	output:rbac:dir=config/rbac

hack/tool.sh crd-ref-docs \
	--source-path=api/v1alpha1 \
	--config=hack/tools/crd-ref-docs/config.yaml \
	--templates-dir=hack/tools/crd-ref-docs/templates \
	--renderer=markdown \
	--output-path=docs/api.md \
	--log-level=ERROR
