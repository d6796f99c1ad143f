#!/usr/bin/env bash
# Writes the root file system of the agent's image into a directory that it makes:
#
#   hack/images/debian-root.sh GOARCH DIRECTORY
#
# It holds the programs that the agent runs, the libraries that they need, and
# nothing else: no shell, no package manager. The packages come from Debian,
# their signatures checked; none is installed, so that any architecture can be
# had on any other, and without being root.
#
# packages.ARCHITECTURE.lock, beside this script, pins each package by its version
# and its SHA-256, so the same commit gives the same files. These variables matter:
#
#   REFRESH=1            pins the versions that Debian has now: rewrites the lock
#   STALE_PACKAGES=warn  replaces versions that the mirror no longer has by its
#                        current ones, with a warning; otherwise that is an error
#   DEBIAN_MIRROR        another mirror, such as a snapshot of an earlier day
#
# Warnings, and notes on newer versions, go to DIRECTORY.notes.
set -euo pipefail
umask 022

# The one place that names the release of Debian and the packages.
suite=bookworm
programs=(iptables)
libraries=(
	libc6
	libip4tc2 libip6tc2 libxtables12 libmnl0 libnfnetlink0 libnetfilter-conntrack3 libnftnl11 # iptables
)
# Names of protocols, the licenses that the packages refer to, and the files by which
# vulnerability scanners recognize the Debian release.
data=(netbase base-files)

# download runs inside mmdebstrap, with its apt. What is wrong with the lock goes to
# $WORK/problem.
download() {
	export APT_CONFIG=$MMDEBSTRAP_APT_CONFIG
	local package locked current
	local packages=() unlocked=() missing=() newer=()
	local versions='/^Package: / { package = $2 } /^Version: / { print package, $2 }'
	# shellcheck disable=SC2086 # a list of words
	apt-cache show $PACKAGES | awk "$versions" >"$WORK/available"
	# shellcheck disable=SC2086
	apt-cache show --no-all-versions $PACKAGES | awk "$versions" >"$WORK/current"
	for package in $PACKAGES; do
		current=$(awk -v package="$package" '$1 == package { print $2 }' "$WORK/current")
		locked=$(awk -v package="$package" '$1 == package { print $2 }' "$WORK/lock")
		if [[ -n ${REFRESH:-} ]]; then
			locked=$current
		elif [[ -z $locked ]]; then
			unlocked+=("$package")
		elif ! grep -qxF "$package $locked" "$WORK/available"; then
			missing+=("$package $locked")
			locked=$current
		elif [[ $locked != "$current" ]]; then
			newer+=("$package $current")
		fi
		packages+=("$package=$locked")
	done
	if [[ ${#unlocked[@]} -gt 0 ]]; then
		echo "$LOCK does not pin ${unlocked[*]}. Run $COMMAND and commit the file." >"$WORK/problem"
		return 1
	fi
	if [[ ${#missing[@]} -gt 0 ]]; then
		local text
		text="the mirror no longer has $(join "${missing[@]}"), pinned by $LOCK"
		if [[ ${STALE_PACKAGES:-} != warn ]]; then
			echo "$text. Run $COMMAND and commit the file, or set DEBIAN_MIRROR to a snapshot of $(sed -n 's/^# Pinned on \([0-9-]*\).*/\1/p' "$WORK/lock")." >"$WORK/problem"
			return 1
		fi
		echo "WARNING: $text; its current versions are in this image. Run $COMMAND and commit the file." >>"$WORK/notes"
	fi
	if [[ ${#newer[@]} -gt 0 ]]; then
		echo "NOTE: Debian has newer packages than $LOCK pins: $(join "${newer[@]}"). $COMMAND pins them." >>"$WORK/notes"
	fi
	cd "$WORK/packages"
	apt-get -o APT::Sandbox::User=root download "${packages[@]}"
}

join() {
	local IFS=,
	sed 's/,/, /g' <<<"$*"
}

if [[ $1 == --download ]]; then
	download
	exit
fi

case $1 in # to Debian's name
386) architecture=i386 ;;
arm) architecture=armhf ;;
ppc64le) architecture=ppc64el ;;
*) architecture=$1 ;;
esac
root=$2
self=$(realpath "$0")
lock=$(dirname "$self")/packages.$architecture.lock

temp=$(mktemp --directory)
trap 'rm -rf "$temp"' EXIT
mkdir "$temp/packages"
chmod 0755 "$temp"
touch "$temp/notes" "$temp/lock"
[[ ! -f $lock ]] || cp "$lock" "$temp/lock"

echo "Getting the packages of Debian $suite for $architecture ..."
# mmdebstrap is used for the sake of its apt: it knows the mirrors of a release,
# leaves this machine's settings aside and checks signatures. It unpacks nothing.
export SELF=$self WORK=$temp PACKAGES="${programs[*]} ${libraries[*]} ${data[*]}"
export LOCK=hack/images/packages.$architecture.lock COMMAND="make images GOARCH=$1 REFRESH=1"
# shellcheck disable=SC2016 # the variables are those of the hook
if ! mmdebstrap --variant=extract --mode=chrootless --format=null --architectures="$architecture" \
	--extract-hook='"$SELF" --download' "$suite" - ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} >"$temp/log" 2>&1; then
	if [[ -s $temp/problem ]]; then
		echo "debian-root.sh: $(cat "$temp/problem")" >&2
		exit 1
	fi
	cat "$temp/log" >&2
	echo "debian-root.sh: the packages of Debian $suite cannot be had; is a mirror within reach? http_proxy and DEBIAN_MIRROR are heeded." >&2
	exit 1
fi

mkdir --parents "$root/var/lib/dpkg/status.d"
for package in "$temp"/packages/*.deb; do
	name=$(dpkg-deb --field "$package" Package)
	version=$(dpkg-deb --field "$package" Version)
	sum=$(sha256sum "$package" | cut -d ' ' -f 1)
	echo "$name $version $sum" >>"$temp/pins"
	pinned=$(awk -v name="$name" -v version="$version" '$1 == name && $2 == version { print $3 }' "$temp/lock")
	if [[ -z ${REFRESH:-} && -n $pinned && $sum != "$pinned" ]]; then
		echo "debian-root.sh: $name $version from the mirror has the SHA-256 $sum, but $LOCK pins $pinned. Use another mirror (DEBIAN_MIRROR): Debian never changes a package under the same version." >&2
		exit 1
	fi
	dpkg-deb --extract "$package" "$root"
	# Where scanners look in images without dpkg.
	dpkg-deb --field "$package" >"$root/var/lib/dpkg/status.d/$name"
done
if [[ -n ${REFRESH:-} ]]; then
	{
		echo "# Debian's packages in the agent's image for $architecture, with versions and SHA-256 sums."
		echo "# Pinned on $(date --utc +%F) by $COMMAND."
		LC_ALL=C sort "$temp/pins"
	} >"$temp/lock"
	cp "$temp/lock" "$lock"
fi
cp "$temp/notes" "$root.notes"

# Both variants are there under their own names. The plain ones, for humans, are
# those that Debian would choose; what the agent uses it finds out on its node.
for family in iptables ip6tables; do
	for program in "$family" "$family-save" "$family-restore"; do
		ln --symbolic xtables-nft-multi "$root/usr/sbin/$program"
	done
done

# Remove files that no program here reads, scripts (there is no shell) and programs of
# these packages that are never run. The copyright files stay.
cd "$root"
rm -rf usr/share/{man,info,locale,lintian,bash-completion,bug,doc-base,menu,pixmaps,iptables,dict,base-files} \
	usr/lib/*/gconv usr/sbin/ip{,6}tables-apply usr/sbin/nfnl_osf usr/{games,include,src,local} \
	etc/{apt,dpkg,init.d,profile.d,skel,update-motd.d} ./{boot,home,media,mnt,srv}
find usr/share/doc -not -type d -not -name copyright -not -type l -delete
find usr/share/doc -xtype l -delete
find usr/share/doc -mindepth 1 -type d -empty -delete
