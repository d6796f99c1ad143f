// Package modeltest compares package iptablesmodel to the kernel: it loads a rule set
// into a network namespace, sends packets through it and reports what the kernel did
// with each of them.
package modeltest
