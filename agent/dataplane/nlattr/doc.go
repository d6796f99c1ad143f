// Package nlattr reads and writes the attributes of netlink messages of conntrack, ipset and
// nf_tables. The netlink library provides sockets and message headers.
//
//   - nlattr.go: attributes; nest.go: attributes that consist of attributes
package nlattr
