// Command echo is the server in each pod of a local cluster. On each given port, over TCP,
// UDP and SCTP, it answers every line or datagram with one line: its own name and the
// address of the client as it sees it. A TCP or SCTP connection stays open until the
// client closes it. Over HTTP it answers each request with the same line.
//
// With -drain it ends like a well-behaved server: on SIGTERM its /readyz fails, it
// continues to serve for that long, finishes requests, and exits.
package main
