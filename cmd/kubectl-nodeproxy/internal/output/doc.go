// Package output prints the results of the plugin's commands: as tables, yaml or json.
//
//   - output.go: formats and API version
//   - text.go: lines, columns and lists of tables
//   - printable.go: quotes control characters
package output
