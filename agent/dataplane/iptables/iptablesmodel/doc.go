// Package iptablesmodel is a model of what is behind the iptables programs: a
// kernel that takes the input of iptables-restore and computes the fate of a
// packet. It knows no code of ours, only what the programs and the kernel do, so
// that tests compare planned rules to their purpose, and tracers show their
// effect. It rejects what it does not know.
//
//   - kernel.go: the tables, as the programs read and write them; rule.go: parses and compares rules
//   - trace.go: the fate of a packet
package iptablesmodel
