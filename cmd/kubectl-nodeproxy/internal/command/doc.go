// Package command is the plugin's command line: flags, the objects that each command reads,
// and exit codes.
//
//   - command.go: the root command and exit codes
//   - program.go: what the commands share
//   - status.go, rules.go, diff.go, doctor.go, trace.go, version.go: the commands
//   - completion.go, unknown.go: completion, and unknown commands
package command
