// Package olm installs, upgrades and removes an operator from its bundle, as OLM does for
// an operator of all namespaces. OLM itself does not run in tests: this creates the same
// objects in the same order, as far as the operator can notice.
package olm
