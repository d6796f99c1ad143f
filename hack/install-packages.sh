#!/usr/bin/env bash
# Makes sure that the programs used by the tests on the real kernel are installed. As root
# on Debian and its relatives it installs missing ones; otherwise it lists them. Missing
# programs are an error only for root, because other users skip these tests.
#
# The argument real-nodes adds what clusters with real kubelets use
# (test/cluster/kubelets): containerd, runc and the CNI plugins. Other arguments limit the
# search to the named programs.
set -euo pipefail

export PATH="$PATH:/usr/sbin:/sbin"

real_nodes=
if [[ ${1:-} == real-nodes ]]; then
	real_nodes=yes
	shift
fi

missing=()
packages=()
while read -r program package; do
	if [[ $# -gt 0 && " $* " != *" $program "* ]]; then
		continue
	fi
	if ! command -v "$program" >/dev/null; then
		missing+=("$program")
		packages+=("$package")
	fi
done <<-END
	bc bc
	bison bison
	conntrack conntrack
	flex flex
	gcc gcc
	ip iproute2
	ipset ipset
	ipvsadm ipvsadm
	iptables iptables
	linux.uml user-mode-linux
	mmdebstrap mmdebstrap
	modprobe kmod
	nft nftables
	xz xz-utils
END

# These two are extracted from their package, because installing it would start a Prometheus
# server for the whole machine.
unpack=()
for program in promtool prometheus; do
	if [[ $# -eq 0 ]] && ! command -v "$program" >/dev/null; then
		missing+=("$program")
		unpack=(prometheus)
	fi
done

# Likewise these three, whose packages would start a containerd for the whole machine. Their
# files go to a separate directory.
containers=/usr/local/lib/nodeproxy-test
containers_in=()
if [[ -n $real_nodes ]]; then
	for file in usr/bin/containerd usr/sbin/runc usr/lib/cni/ptp; do
		if [[ ! -x $containers/$file ]]; then
			missing+=("$(basename "$file")")
			containers_in=(containerd runc containernetworking-plugins)
		fi
	done
	unpack+=("${containers_in[@]}")
fi

if [[ ${#missing[@]} -eq 0 ]]; then
	exit 0
fi
echo "Not found: ${missing[*]}."
if [[ $(id -u) -ne 0 ]]; then
	echo "Tests that use them need root and are skipped."
	exit 0
fi
if ! command -v apt-get >/dev/null; then
	echo "Install them with this system's package manager; the Debian packages are: ${packages[*]} ${unpack[*]}." >&2
	exit 1
fi
echo "Running apt-get update and installing ${packages[*]} ${unpack[*]}; this takes less than a minute."
export DEBIAN_FRONTEND=noninteractive
# install_all runs as a condition, where set -e has no effect.
install_all() {
	apt-get update || return
	if [[ ${#packages[@]} -gt 0 ]]; then
		apt-get install --yes --no-install-recommends "${packages[@]}" || return
	fi
	if [[ ${#unpack[@]} -gt 0 ]]; then
		(cd "$temp" && apt-get -o APT::Sandbox::User=root download "${unpack[@]}") || return
	fi
	if [[ " ${unpack[*]} " == *" prometheus "* ]]; then
		dpkg-deb --fsys-tarfile "$temp"/prometheus_*.deb | tar --extract --directory "$temp" ./usr/bin/promtool ./usr/bin/prometheus || return
		install --mode 0755 "$temp/usr/bin/promtool" "$temp/usr/bin/prometheus" /usr/local/bin || return
	fi
	for package in "${containers_in[@]}"; do
		dpkg-deb --extract "$temp/$package"_*.deb "$containers" || return
	done
}
temp=$(mktemp --directory)
trap 'rm -rf "$temp"' EXIT
log=$temp/log
if ! install_all >"$log" 2>&1; then
	cat "$log" >&2
	echo "apt-get failed; install these packages by hand: ${packages[*]} ${unpack[*]}." >&2
	exit 1
fi
