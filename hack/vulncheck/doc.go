// Command vulncheck fails if a known vulnerability reaches the programs of cmd/. It runs
// govulncheck in the version that hack/tools/govulncheck pins. If the vulnerability database
// cannot be reached, it prints "NOT RUN" and fails only with -required.
package main
