// Package modeltest compares package iptablesmodel with the kernel: it loads a rule set
// into a network namespace, sends packets through it, and returns what the kernel did with
// each of them.
package modeltest
