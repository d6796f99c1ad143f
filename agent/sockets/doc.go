// Package sockets reports which processes have the TCP ports of the calling thread's network
// namespace. The kernel reports it by netlink (sock_diag), whatever answers on the ports.
package sockets
