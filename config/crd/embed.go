// Package crd holds the CRDs.
package crd

import "embed"

//go:embed bases
var bases embed.FS

// Bases returns the CRDs: the folder bases with one file for each, in YAML.
func Bases() embed.FS { return bases }
