#!/usr/bin/env bash
# Makes sure that the programs are there that the tests on the real kernel use.
# As root on Debian and its relatives it installs what is missing; otherwise it
# says what is missing. Missing programs are an error for root only: tests that
# need root are left out for everybody else.
set -euo pipefail

export PATH="$PATH:/usr/sbin:/sbin"

missing=()
packages=()
while read -r program package; do
	if ! command -v "$program" >/dev/null; then
		missing+=("$program")
		packages+=("$package")
	fi
done <<-END
	conntrack conntrack
	gcc gcc
	ip iproute2
	ipset ipset
	iptables iptables
	modprobe kmod
	nft nftables
END

if [[ ${#missing[@]} -eq 0 ]]; then
	exit 0
fi
echo "Not found: ${missing[*]}."
if [[ $(id -u) -ne 0 ]]; then
	echo "Tests that use them need root anyhow and are left out."
	exit 0
fi
if ! command -v apt-get >/dev/null; then
	echo "Install them with this system's package manager; in Debian they are in: ${packages[*]}." >&2
	exit 1
fi
echo "Running apt-get update and apt-get install ${packages[*]}; this takes less than a minute."
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update && apt-get install --yes --no-install-recommends "${packages[@]}"; } >"$log" 2>&1; then
	cat "$log" >&2
	echo "apt-get failed; install these packages by hand: ${packages[*]}." >&2
	exit 1
fi
