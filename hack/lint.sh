#!/usr/bin/env bash
# Runs golangci-lint in the version that hack/tools/golangci-lint pins, and checks the
# language.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

status=0
go run ./hack/language || status=1
# The images' program is a separate module.
for module in . hack/images; do
	(cd "$module" && "$root/hack/tool.sh" golangci-lint run --allow-parallel-runners "$@" ./...) || status=1
done
exit "$status"
