// Command sbom writes the bill of materials of an archive as CycloneDX JSON: the Go
// modules of the program in it, from the program's build information, and the Debian
// packages of its root file system, from dpkg's status files. The same files give the
// same bytes. hack/images.sh and hack/plugin.sh run it.
package main
