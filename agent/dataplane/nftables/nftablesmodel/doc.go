// Package nftablesmodel is a model of the kernel's nf_tables: it takes the batches of package nft,
// message by message, and computes the fate of a packet. It knows nothing of the data plane, so that
// tests compare what that writes to its purpose, and tracers show its effect. It rejects what the
// kernel rejects, and what it does not know.
//
//   - kernel.go: the tables, as the data plane lists them
//   - batch.go, sets.go: a batch
//   - expressions.go: the expressions of rules; text.go: as the program nft prints them
//   - validate.go: which rules a chain may have
//   - trace.go, verdicts.go: a packet
package nftablesmodel
