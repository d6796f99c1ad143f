// Command compact stores recorded states for the golden tests of the kubectl plugin: one
// file each, with the differences from another state.
//
//	go run ./test/recorded/cmd/compact -from RECORDED -to cmd/kubectl-nodeproxy/testdata/states
//
// RECORDED has a directory for each newly recorded state. A state that is already stored
// keeps its parent, commands and forbidden kinds; other states stay as they are, even if
// their parent was newly recorded. Without -from it rewrites all files.
package main
