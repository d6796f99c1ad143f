// Package bundle reads an OLM bundle and checks the rules that OLM and its catalogs
// publish for bundles, which docs/olm.md lists. Its tests check this repository's bundle.
//
//   - bundle.go, package.go: the files of a bundle; kinds.go: what the console offers
//   - rules.go, texts.go, install.go: the rules that it must keep
package bundle
