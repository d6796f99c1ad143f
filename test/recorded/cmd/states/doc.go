// Command states records the states for the golden tests of the kubectl plugin from a local
// cluster with nodeproxy (as root; three minutes). Command compact adds them to the tests:
//
//	go run ./test/recorded/cmd/states -bin bin -out RECORDED
//	go run ./test/recorded/cmd/compact -from RECORDED -to cmd/kubectl-nodeproxy/testdata/states
package main
