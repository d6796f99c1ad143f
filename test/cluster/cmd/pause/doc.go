// Command pause keeps the namespaces of a pod on a real node alive until it is asked to
// exit.
package main
