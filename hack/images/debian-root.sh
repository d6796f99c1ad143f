#!/usr/bin/env bash
# Writes the root file system of the agent's image into a folder that it makes:
#
#   hack/images/debian-root.sh GOARCH FOLDER
#
# It holds the programs that the agent runs, the libraries that they need, and
# nothing else: no shell, no package manager. The packages come from Debian,
# their signatures checked; none is installed, so that any architecture can be
# had on any other, and without being root. DEBIAN_MIRROR names another mirror,
# such as a snapshot of an earlier day.
set -euo pipefail
umask 022

# The one place that names the release of Debian and the packages.
suite=bookworm
programs=(iptables ipset kmod)
libraries=(
	libc6 libgcc-s1
	libip4tc2 libip6tc2 libxtables12 libmnl0 libnfnetlink0 libnetfilter-conntrack3 libnftnl11 # iptables
	libipset13                                                                                # ipset
	libkmod2 liblzma5 libssl3 libzstd1                                                        # kmod
)
# Names of protocols, the licences that the packages refer to, and what tells
# scanners of vulnerabilities which Debian this is.
data=(netbase base-files gcc-12-base)

case $1 in # to Debian's name
386) architecture=i386 ;;
arm) architecture=armhf ;;
ppc64le) architecture=ppc64el ;;
*) architecture=$1 ;;
esac
root=$2

temp=$(mktemp --directory)
trap 'rm -rf "$temp"' EXIT
mkdir "$temp/packages"
chmod 0755 "$temp"

echo "Getting the packages of Debian $suite for $architecture ..."
# mmdebstrap is used for the sake of its apt: it knows the mirrors of a release,
# leaves this machine's settings aside and checks signatures. It unpacks nothing.
export PACKAGES_FOLDER=$temp/packages
export PACKAGES="${programs[*]} ${libraries[*]} ${data[*]}"
# shellcheck disable=SC2016 # the variables are those of the hook
if ! mmdebstrap --variant=extract --mode=chrootless --format=null --architectures="$architecture" \
	--extract-hook='cd "$PACKAGES_FOLDER" && APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get -o APT::Sandbox::User=root download $PACKAGES' \
	"$suite" - ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} >"$temp/log" 2>&1; then
	cat "$temp/log" >&2
	echo "debian-root.sh: the packages of Debian $suite cannot be had; is a mirror within reach? http_proxy and DEBIAN_MIRROR are heeded." >&2
	exit 1
fi

mkdir --parents "$root/var/lib/dpkg/status.d"
for package in "$temp"/packages/*.deb; do
	dpkg-deb --extract "$package" "$root"
	# Where scanners look in images without dpkg.
	dpkg-deb --field "$package" >"$root/var/lib/dpkg/status.d/$(dpkg-deb --field "$package" Package)"
done

# Both variants are there under their own names. The plain ones, for people, are
# those that Debian would choose; what the agent uses it finds out on its node.
for family in iptables ip6tables; do
	for program in "$family" "$family-save" "$family-restore"; do
		ln --symbolic xtables-nft-multi "$root/usr/sbin/$program"
	done
done

# What no program here reads, and scripts, as there is no shell. The copyright
# files stay.
cd "$root"
rm -rf usr/share/{man,info,locale,lintian,bash-completion,bug,doc-base,menu,pixmaps,iptables,dict,initramfs-tools,base-files} \
	usr/lib/*/gconv usr/sbin/ip{,6}tables-apply usr/{games,include,src,local} \
	etc/{apt,dpkg,init.d,profile.d,skel,update-motd.d} ./{boot,home,media,mnt,srv}
find usr/share/doc -not -type d -not -name copyright -not -type l -delete
find usr/share/doc -xtype l -delete
find usr/share/doc -mindepth 1 -type d -empty -delete
