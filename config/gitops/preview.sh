#!/bin/sh
# preview.sh DIRECTORY: fails if the policies in DIRECTORY are invalid; writes the
# resulting changes to preview.diff.
status=0
nodeproxy-controller render -f "$1" --recursive --prune --kubeconfig "$KUBECONFIG" --diff \
	>preview.diff 2>preview.txt || status=$?
cat preview.txt
tail -n 1 preview.diff
case $status in
0 | 1) exit 0 ;; # changes are expected in a pull request
*) exit "$status" ;;
esac
