// Package plugin checks the output of make plugin against the rules of krew, which
// installs kubectl plugins, and runs the plugin with the real kubectl.
package plugin
