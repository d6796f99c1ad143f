// Package command is the plugin's command line: flags, the objects that each command reads,
// and exit codes.
//
//   - command.go: the root command, exit codes, version
//   - program.go: what the commands share
//   - health.go: doctor and status; rules.go: rules and diff; trace.go: trace;
//     importing.go: import-kube-proxy
//   - completion.go: completion, and unknown commands
package command
