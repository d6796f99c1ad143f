// Command language finds phrases that this project does not use, in Go comments,
// string literals and identifiers, in Markdown, YAML and scripts, and broken links between
// Markdown pages. It is part of make lint and needs nothing but git.
//
//   - phrases.go: the phrases, each with what to write instead
//   - find.go: where a file has them
//   - allow.go, allow.txt: the exceptions, each with its reason
//   - links.go: where links lead
package main
