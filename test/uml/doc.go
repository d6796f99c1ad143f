// Package uml runs programs and tests in their own kernel, User-mode Linux: what only works
// in the host's network namespace, would disturb the whole machine, or needs modules that
// this machine's kernel lacks, such as IPVS.
//
// The kernel has this machine's files as its root file system, so what is written
// outside of temporary directories stays; /run, /var/lib and /var/log are its own, in
// memory, and gone with it. It has one CPU, no network but the loopback interface,
// and iptables' legacy variant only, which is what "iptables" is there. Modules are
// loaded on demand, as on a node.
//
// The first process of the kernel is the program that calls Run: its main function,
// or the TestMain of its package, has to call Boot before all else (Main does). It
// sets the machine up and runs there what the caller of Run has requested: other arguments
// of the same program, or another program, with the caller's environment and working
// directory. Its output appears at once. The processes that it starts end with it.
//
// Package cluster runs in the kernel as it does outside. Build Go programs before, outside:
// see cluster.Build and Options.Env.
//
//   - kernel.go: finds a kernel; uml.go: runs it; inside.go: what runs in it; testing.go: a test in it; processor.go: its processor;
//     registers.go: its registers where the processor has AMX
package uml
