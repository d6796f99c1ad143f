// Package admission contains the cluster objects that the controller can maintain itself, for installers
// that cannot install them: the admission policies, and the labels with which its namespace admits
// the agents' pods. It is pure.
package admission
