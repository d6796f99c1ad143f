package crd

import "embed"

//go:embed bases
var bases embed.FS

// Bases returns the CRDs: the directory bases with one YAML file per CRD.
func Bases() embed.FS { return bases }
