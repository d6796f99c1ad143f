// Package startuptaint removes the startup taint from Nodes whose agent serves pods.
package startuptaint
