// Package hints has what the plugin's texts refer to: pages of the documentation, and
// commands that show nodeproxy's pods. Users may have nothing but the plugin and a cluster.
//
//   - hints.go: Docs for pages, Namespace for commands
package hints
