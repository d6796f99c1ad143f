// Package rules parses the output of iptables-save, and shows how the rules of two
// programs differ. It uses no code of the agent, so that the judge does not share its
// mistakes.
package rules
