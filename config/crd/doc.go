// Package crd embeds the CRDs.
package crd
