// Package unix has what the messages of nf_tables need of golang.org/x/sys/unix, which lacks it on
// other systems than Linux: there kubectl nodeproxy trace has the data plane program a model of the
// kernel.
package unix
