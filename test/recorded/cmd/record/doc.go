// Command record writes the state of a cluster into a directory. Command compact adds it to
// the states of the golden tests of the kubectl plugin:
//
//	go run ./test/recorded/cmd/record -kubeconfig FILE -out RECORDED/NAME
//	go run ./test/recorded/cmd/compact -from RECORDED -to cmd/kubectl-nodeproxy/testdata/states
package main
