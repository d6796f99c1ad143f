// Package programs gives tests this repository's programs. hack/test.sh builds them once
// for a whole run and names their directory in NODEPROXY_PROGRAMS; without that variable
// each suite builds its own.
package programs
