# Every target that needs more than a line is a script in hack/.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMANDS := $(notdir $(wildcard cmd/*))

# The version comes from VERSION; asking git again would fail in a clone that
# belongs to another user.
export GOFLAGS := $(strip $(GOFLAGS) -buildvcs=false)

.DEFAULT_GOAL := help

##@ General

.PHONY: help
help: ## Show this list.
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@/ { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Build

.PHONY: build
build: $(addprefix bin/,$(COMMANDS)) ## Build the programs into bin/.

.PHONY: FORCE
bin/%: FORCE
	@echo "Building $@; the first time this takes a minute or two."
	@CGO_ENABLED=0 go build -trimpath -ldflags '-X main.version=$(VERSION)' -o $@ ./cmd/$*

.PHONY: generate
generate: ## Write deep copies, CRDs and RBAC roles from the Go code.
	hack/generate.sh

.PHONY: clean
clean: ## Remove what building and testing left in this folder.
	rm -rf bin dist cover.out

##@ Check

.PHONY: fmt
fmt: ## Format the Go code.
	gofmt -w $$(git ls-files --cached --others --exclude-standard '*.go')

.PHONY: vet
vet: ## Run go vet.
	go vet ./...

.PHONY: lint
lint: ## Run golangci-lint (builds it the first time, about 4 minutes).
	hack/lint.sh

.PHONY: verify
verify: ## Fail if generated files, formatting or go.mod are not up to date.
	hack/verify.sh

##@ Test

.PHONY: test
test: ## Run all tests; sets up what they need. As root also those on the real kernel.
	hack/test.sh all

.PHONY: test-unit
test-unit: ## Run the tests that need neither root nor an API server.
	hack/test.sh unit

.PHONY: test-race
test-race: ## Run all tests but those of test/ with the race detector.
	hack/test.sh race

.PHONY: test-api
test-api: ## Run the tests against a real API server.
	hack/test.sh api

.PHONY: test-netns
test-netns: ## Run the tests on the real kernel, in network namespaces (root).
	hack/test.sh kernel

.PHONY: test-cluster
test-cluster: ## Run the tests of the local cluster that demo and tests use (root).
	hack/install-packages.sh
	go test -count 1 ./test/cluster/...

.PHONY: bench
bench: ## Run the Go benchmarks, with allocations.
	go test -run '^$$' -bench . -benchmem ./controllers/... ./agent/...

.PHONY: performance
performance: build ## Measure from EndpointSlice write to kernel rule, and memory (root).
	hack/install-packages.sh
	go run ./test/performance -bin bin

##@ Try out

.PHONY: demo
demo: build ## Show it at work in a local cluster (root); KEEP=1 leaves the cluster up.
	go run ./test/demo -bin bin $(if $(filter-out 0 no false,$(KEEP)),-keep)

.PHONY: demo-clean
demo-clean: ## Remove what make demo KEEP=1 or a crash left.
	go run ./test/demo -clean
