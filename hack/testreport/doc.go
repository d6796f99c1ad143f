// Command testreport runs tests for hack/test.sh and decides at the end whether the run
// passed:
//
//	testreport run [flags] -- [flags of go test] -- packages
//	testreport command [flags] NAME -- program arguments
//	testreport close [flags]
//
// run calls go test and prints one line per package and the output of failed tests.
// command does the same for another program, such as the demo. Both append their results
// to the file of -records. close prints that file as one table, with the skipped, retried
// and failed tests, and exits with 1 if the run has failed. go test itself calls
// "testreport measure" for the CPU time of each package.
//
//   - main.go: the subcommands; gotest.go: one call of go test; again.go: repetition of failed tests
//   - report.go: what is printed of a package; records.go: what is stored of it; closing.go: the table at the end
package main
