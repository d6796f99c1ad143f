// Command nodeinit is the first process of a machine of test/cluster, started in its own
// process, mount and host name namespaces. It sets the machine's name, mounts the
// machine's own directories over the host's, prints "ready", and reaps orphaned processes
// until it ends. Then the kernel ends all processes of the machine and removes its mounts.
package main
