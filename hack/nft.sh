#!/usr/bin/env bash
# Unpacks the versions of nft that hack/nft.lock pins into the user's cache directory, once. Tests list
# our table with each of them, and fail on amd64 if one is missing. Nothing is installed. DEBIAN_ARCHIVE is
# the archive's URL (default: the one that apt uses).
set -euo pipefail
cd "$(dirname "$0")"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/nodeproxy/nft
helper=/usr/lib/apt/apt-helper
archive=${DEBIAN_ARCHIVE:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null | sed -n 1p || true)}

# unpack VERSION DIRECTORY is called as a condition, where set -e has no effect.
unpack() {
	local sum file library
	while read -r sum file; do
		"$helper" -o APT::Sandbox::User=root -o Acquire::Retries=0 -o Acquire::http::Timeout=10 download-file \
			"${archive%/}/$file" "$2/package" "SHA256:$sum" || return
		dpkg-deb --extract "$2/package" "$2" && rm "$2/package" || return
	done < <(awk -v version="$1" '$1 == version { print $2, $3 }' nft.lock)
	# Each has its own libc, because it may need another one than this machine has.
	for library in lib usr/lib; do
		if [[ -e $2/$library/x86_64-linux-gnu/ld-linux-x86-64.so.2 ]]; then
			cat >"$2/nft" <<-END
				#!/bin/sh
				root=\$(dirname "\$0")
				exec "\$root/$library/x86_64-linux-gnu/ld-linux-x86-64.so.2" --library-path "\$root/lib/x86_64-linux-gnu:\$root/usr/lib/x86_64-linux-gnu" "\$root/usr/sbin/nft" "\$@"
			END
		fi
	done
	chmod +x "$2/nft" && [[ $("$2/nft" --version) == "nftables v$1 "* ]]
}

for version in $(awk '!/^#/ { print $1 }' nft.lock | sort --unique --version-sort); do
	if [[ -x $cache/$version/nft ]]; then
		continue
	fi
	mkdir -p "$cache"
	temp=$(mktemp -d "$cache/.new-XXXXXX")
	touch "$temp/log"
	if [[ $(uname -m) == x86_64 && -x $helper ]] && unpack "$version" "$temp" >"$temp/log" 2>&1; then
		mv -T "$temp" "$cache/$version" 2>/dev/null || [[ -d $cache/$version ]] # another process was faster
	else
		echo "hack/nft.sh: no nft $version for agent/dataplane/nftables: $(grep -m 1 '^E: ' "$temp/log" || true). It needs apt on amd64 and a Debian archive (DEBIAN_ARCHIVE) that has the files in hack/nft.lock."
	fi
	rm -rf "$temp"
done
