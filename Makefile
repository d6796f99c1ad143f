# Every target that needs more than a line is a script in hack/.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c

# Computed once, so that images and manifest agree even if a file changes meanwhile.
ifndef VERSION
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
endif
# The last release, or the one in preparation (docs/release.md). After changing it, run
# make bundle, and change charts/nodeproxy/Chart.yaml.
RELEASE := 0.1.0
COMMANDS := $(notdir $(patsubst %/main.go,%,$(wildcard cmd/*/main.go)))

# Prefix of the image names.
IMAGE_REGISTRY ?= nodeproxy.io
# The API servers, and the directories of config to add: hack/install-manifest.sh.
API_SERVERS ?=
COMPONENTS ?=

# Images, channel, replaced version and output of make bundle: hack/bundle.sh.
CONTROLLER_IMAGE ?= $(IMAGE_REGISTRY)/nodeproxy-controller:v$(RELEASE)
AGENT_IMAGE ?= $(IMAGE_REGISTRY)/nodeproxy-agent:v$(RELEASE)
CHANNEL ?= candidate
REPLACES ?=
BUNDLE_OUTPUT ?=

# What make bench measures: numbers of Services, as in 5000 or 5000x50 (endpoints of each), for how
# long endpoints change, and variants of iptables. Its results go to BENCH_JSON.
SIZES ?= $(if $(filter nftables NFTables,$(MODE)),1x1 5000x10 5000x50 44000x1 44000x3,$(if $(filter userspace Userspace,$(MODE)),100,1000 5000))
CHURN ?= 1m
VARIANTS ?= nf_tables legacy
BENCH_JSON ?= dist/bench.json

# The version comes from VERSION; git would fail in a clone that belongs to another user.
# Programs, tests, vet and lint, in all clones, only share compiled packages if they are
# built with the same flags.
export GOFLAGS := $(strip $(GOFLAGS) -trimpath -buildvcs=false)
export CGO_ENABLED ?= 0

.DEFAULT_GOAL := help

##@ General

.PHONY: help
help: ## Show this list.
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@/ { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z0-9-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Build

.PHONY: build
build: $(addprefix bin/,$(COMMANDS)) ## Build the programs into bin/.

.PHONY: FORCE
bin/%: FORCE
	@echo "Building $@; the first time this takes a minute or two."
	@go build -ldflags '-X main.version=$(VERSION)' -o $@ ./cmd/$*

.PHONY: images
images: ## Write the container images and their SBOMs to dist/images; IMAGE_REGISTRY, VERSION, GOARCH; REFRESH=1 pins Debian's current packages.
	@VERSION="$(VERSION)" IMAGE_REGISTRY="$(IMAGE_REGISTRY)" REFRESH="$(REFRESH)" hack/images.sh

.PHONY: generate
generate: ## Write defaults, deep copies, CRDs, RBAC roles and docs/api.md from the Go code.
	hack/generate.sh

.PHONY: install-manifest
install-manifest: ## Write dist/install.yaml; IMAGE_REGISTRY, API_SERVERS="https://a:6443 ..." and COMPONENTS shape it.
	@VERSION='$(VERSION)' IMAGE_REGISTRY='$(IMAGE_REGISTRY)' API_SERVERS='$(API_SERVERS)' COMPONENTS='$(COMPONENTS)' \
		hack/install-manifest.sh

.PHONY: chart
chart: ## Write the Helm chart to dist/nodeproxy-VERSION.tgz; IMAGE_REGISTRY.
	@VERSION='$(VERSION)' RELEASE='$(RELEASE)' IMAGE_REGISTRY='$(IMAGE_REGISTRY)' hack/chart.sh

.PHONY: bundle
bundle: ## Write the OLM bundle, bundle/ and bundle.Dockerfile; CONTROLLER_IMAGE and AGENT_IMAGE name images by digest, BUNDLE_OUTPUT another directory.
	@RELEASE='$(RELEASE)' CHANNEL='$(CHANNEL)' REPLACES='$(REPLACES)' BUNDLE_OUTPUT='$(BUNDLE_OUTPUT)' \
		CONTROLLER_IMAGE='$(CONTROLLER_IMAGE)' AGENT_IMAGE='$(AGENT_IMAGE)' hack/bundle.sh

.PHONY: plugin
plugin: ## Write the kubectl plugin's archives, SBOMs and krew manifest to dist/plugin; VERSION, PLUGIN_URL.
	@VERSION='$(VERSION)' PLUGIN_URL='$(PLUGIN_URL)' hack/plugin.sh

.PHONY: clean
clean: ## Remove what building and testing have left in this directory.
	rm -rf bin dist cover.out

##@ Check

.PHONY: fmt
fmt: ## Format the Go code.
	gofmt -w $$(git ls-files --cached --others --exclude-standard '*.go')

.PHONY: vet
vet: ## Run go vet.
	go vet ./...

.PHONY: lint
lint: ## Run golangci-lint and check the language (builds golangci-lint the first time, about 4 minutes).
	hack/lint.sh

.PHONY: verify
verify: ## Fail if generated files, formatting or go.mod are not up to date.
	hack/verify.sh

.PHONY: vulncheck
vulncheck: ## Fail if a known vulnerability is reachable from the programs (govulncheck); GOVULNDB names a mirror, REQUIRED=1 fails if the database cannot be reached.
	@go run ./hack/vulncheck $(if $(filter-out 0 no false,$(REQUIRED)),-required)

.PHONY: release-check
release-check: FINAL = -final
release-check: ## Fail if RELEASE, bundle, catalog, CHANGELOG.md, released CRDs and tag contradict each other (docs/release.md).
	@go run ./hack/releasecheck -release '$(RELEASE)' $(FINAL)

##@ Test

.PHONY: test
test: ## Run units, API server suites, the data planes on the real kernel (root) and the demo; 10 minutes.
	hack/test.sh quick

.PHONY: test-all
test-all: ## Run everything that gates a change, with the race detector where it applies (root); 36 to 42 minutes.
	hack/test.sh all

.PHONY: test-long
test-long: ## Run what a release needs beyond test-all: all parity worlds, fuzzing, soak, the oldest Kubernetes (root).
	hack/test.sh long

.PHONY: test-unit
test-unit: ## Run the tests that need neither root nor an API server.
	hack/test.sh unit

.PHONY: test-race
test-race: ## Run the tests that run in one process with the race detector.
	hack/test.sh race

.PHONY: test-api
test-api: ## Run the tests against a real API server.
	hack/test.sh api

.PHONY: test-netns
test-netns: ## Run the tests on the real kernel, in network namespaces (root).
	hack/test.sh kernel

.PHONY: test-parity
test-parity: ## Compare rules with kube-proxy's, side by side (root); PARITY_SEED, PARITY_WORLDS, PARITY_FRESH_WORLDS, PARITY_FULL=1.
	hack/test.sh parity

.PHONY: test-ipvs
test-ipvs: ## Run the tests of mode IPVS, in User-mode Linux if this kernel has no IPVS (root).
	hack/test.sh ipvs

.PHONY: test-faults
test-faults: ## Inject faults under load and print failed connections (root); FAULTS, FAULTS_SEED.
	hack/test.sh faults

.PHONY: test-tenants
test-tenants: ## Let one tenant attack the shared proxy, and check that a second one is not harmed (root).
	hack/test.sh tenants

.PHONY: test-e2e
test-e2e: ## Install, upgrade, break and remove nodeproxy on a real cluster, under load (root); E2E=name,name chooses rows.
	hack/test.sh e2e

.PHONY: test-images
test-images: ## Run the tests of the container images.
	hack/test.sh images

.PHONY: test-oldest
test-oldest: ## Try the API, the manifests and the demo on the oldest supported Kubernetes (root).
	hack/test.sh oldest

.PHONY: test-cluster
test-cluster: ## Run the tests of the local clusters that demo and tests use (root).
	hack/install-packages.sh real-nodes
	go test -count 1 ./test/cluster/...

.PHONY: bench
bench: build ## Compare speed and cost with kube-proxy (root, 33 minutes); SIZES="1000" and VARIANTS="nf_tables" shorten it; MODE=ipvs, nftables or userspace in that mode; AGAINST=test/bench/ratios.json fails if a ratio got worse.
	hack/install-packages.sh
	go run ./test/bench $(if $(MODE),-mode $(MODE)) $(if $(AGAINST),-against "$(AGAINST)") -bin bin -sizes "$(SIZES)" -churn "$(CHURN)" -variants "$(VARIANTS)" -out "$(BENCH_JSON)"

.PHONY: scale
scale: bin/nodeproxy-controller ## Measure what a cluster of NODES (5000) and SERVICES (10000) costs the API server, beside kube-proxy's watches (root); ONLY names one scenario.
	hack/install-packages.sh
	go run ./test/scale -bin bin -nodes "$(or $(NODES),5000)" -services "$(or $(SERVICES),10000)" -only "$(ONLY)"

.PHONY: bench-go
bench-go: ## Run the Go benchmarks, with allocations.
	go test -run '^$$' -bench . -benchmem ./controllers/... ./agent/...

##@ Try out

.PHONY: demo
demo: build ## Show nodeproxy at work in a local cluster (root); MODE=ipvs, nftables or userspace in that mode; KEEP=1 leaves the cluster up.
	go run ./test/demo -bin bin $(if $(MODE),-mode $(MODE)) $(if $(filter-out 0 no false,$(KEEP)),-keep)

.PHONY: demo-clean
demo-clean: ## Remove what make demo KEEP=1 or a crash has left.
	go run ./test/demo -clean

# The API server of each such cluster. Nothing proxies Services before nodeproxy, so it
# needs this address.
CLUSTER_API_SERVERS := https://172.20.0.1:6443

.PHONY: cluster
cluster: ## Run nodeproxy on a real cluster of two nodes with kubelets and containers on this machine (root); KUBE_PROXY=1 runs kube-proxy instead.
	hack/install-packages.sh real-nodes
	@$(MAKE) --no-print-directory images install-manifest VERSION="$(VERSION)" API_SERVERS="$(CLUSTER_API_SERVERS)"
	go run ./test/cluster/kubelets/cmd/cluster $(if $(filter-out 0 no false,$(KUBE_PROXY)),-kube-proxy)

.PHONY: cluster-clean
cluster-clean: ## Remove what make cluster or a crash has left; CLUSTERS="0" limits this.
	go run ./test/cluster/kubelets/cmd/cluster -clean $(CLUSTERS)
