// Package e2e installs nodeproxy on real clusters of package kubelets, from its
// images and its manifest and with the commands of its documentation, and then
// uses, upgrades, breaks and removes it while pods and a client outside make
// connections.
//
// Each test has a cluster of its own and works on it in rows, one after the other. Tests
// run side by side, as many as -parallel says. A row prints what it did to the connections:
//
//	| row | lasted | tried | held | failed | remarks |
//
// E2E=name,name runs these rows alone, and those without which there are none.
package e2e
