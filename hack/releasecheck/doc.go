// Command releasecheck checks that RELEASE of the Makefile, the bundle, the catalog,
// CHANGELOG.md and the tag name the same version, and that the pages on installation name
// none. make verify runs it. With -final, or on an unchanged commit with a tag such as
// v0.1.0, everything must be ready to release.
package main
