// Package e2e installs nodeproxy on real clusters of package kubelets, from its images and
// manifest with the commands of the documentation, and then uses, upgrades, breaks and
// removes it while pods and an outside client make connections.
//
// Each test has its own cluster and runs its rows one after the other. Tests run in
// parallel (-parallel). A row prints its effect on the connections:
//
//	| row | lasted | tried | held | failed | remarks |
//
// E2E=name,name runs only these rows and those that they depend on.
package e2e
