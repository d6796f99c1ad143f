// Command nodeproxy-agent programs one node's kernel with the rules that the controller
// renders, and reports the kernel's actual state.
//
//   - main.go: flags, wiring and subcommands; ipsets.go, virtualservers.go: the subcommands that print
//     what mode IPVS has in the kernel
package main
