// Package output prints the results of the plugin's commands: as tables, yaml or json.
//
//   - output.go: formats, API version, control characters
//   - text.go: lines, columns and lists of tables
package output
