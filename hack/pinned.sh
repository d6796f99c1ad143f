#!/usr/bin/env bash
# Gets the programs that hack/pinned.lock pins, or those named, and keeps them in the user's cache directory.
# Nothing is installed. Tests list our table with each version of nft, and fail on amd64 if one is missing.
# linux.uml is built from source, with uml.config: it takes a quarter of the time of the installed one, which
# tests use without it. DEBIAN_ARCHIVE is the archive's URL (default: the one that apt uses).
set -euo pipefail
cd "$(dirname "$0")"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/nodeproxy
helper=/usr/lib/apt/apt-helper
archive=${DEBIAN_ARCHIVE:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null | sed -n 1p || true)}
loader=x86_64-linux-gnu/ld-linux-x86-64.so.2

# unpack PROGRAM VERSION DIRECTORY is called as a condition, where set -e has no effect.
unpack() {
	local sum file
	while read -r sum file; do
		"$helper" -o APT::Sandbox::User=root -o Acquire::Retries=0 -o Acquire::http::Timeout=10 download-file \
			"${archive%/}/$file" "$3/package" "SHA256:$sum" || return
		dpkg-deb --extract "$3/package" "$3" && rm "$3/package" || return
	done < <(awk -v program="$1" -v version="$2" '$1 == program && $2 == version { print $3, $4 }' pinned.lock)
	"unpacked_${1//./_}" "$2" "$3"
}

# Each program has its own libc, because it may need another one than this machine has.
unpacked_nft() {
	local library
	for library in lib usr/lib; do
		if [[ -e $2/$library/$loader ]]; then
			cat >"$2/nft" <<-END
				#!/bin/sh
				root=\$(dirname "\$0")
				exec "\$root/$library/$loader" --library-path "\$root/lib/x86_64-linux-gnu:\$root/usr/lib/x86_64-linux-gnu" "\$root/usr/sbin/nft" "\$@"
			END
		fi
	done
	chmod +x "$2/nft" && [[ $("$2/nft" --version) == "nftables v$1 "* ]]
}

# The package has the kernel's source.
unpacked_linux_uml() {
	local source=$2/source kernel=$2/kernel
	mkdir "$source" "$kernel" &&
		tar --extract --file "$2"/usr/src/linux-source-*.tar.xz --directory "$source" --strip-components 1 \
			--exclude '*/drivers/gpu/*.[ch]' --exclude '*/drivers/net/ethernet/*.[ch]' --exclude '*/sound/*.[ch]' &&
		make -C "$source" ARCH=um O="$kernel" KCONFIG_ALLCONFIG="$PWD/uml.config" allnoconfig &&
		make -C "$kernel" ARCH=um "-j$(nproc)" linux modules &&
		make -C "$kernel" ARCH=um INSTALL_MOD_PATH="$2" INSTALL_MOD_STRIP=1 modules_install &&
		mv "$kernel/linux" "$2/linux.uml" && rm -r "$source" "$kernel" "$2/usr" || return
	[[ $("$2/linux.uml" --version) == "$1" ]]
}

while read -r program version; do
	directory=$cache/$program/$version
	if [[ -x $directory/$program || $# -gt 0 && " $* " != *" $program "* ]]; then
		continue
	fi
	if [[ $program == linux.uml ]]; then
		echo "Building User-mode Linux $version; this takes up to 13 minutes on two cores, once."
	fi
	mkdir -p "$cache/$program"
	temp=$(mktemp -d "$cache/$program/.new-XXXXXX")
	touch "$temp/log"
	if [[ $(uname -m) == x86_64 && -x $helper ]] && unpack "$program" "$version" "$temp" >"$temp/log" 2>&1; then
		mv -T "$temp" "$directory" 2>/dev/null || [[ -d $directory ]] # another process was faster
	else
		echo "hack/pinned.sh: no $program $version: $(grep -m 1 -E '^E: |Error |not found' "$temp/log" || true). It needs apt on amd64 and a Debian archive (DEBIAN_ARCHIVE) that has the files in hack/pinned.lock."
	fi
	rm -rf "$temp"
done < <(awk '!/^#/ { print $1, $2 }' pinned.lock | sort --unique --version-sort)
