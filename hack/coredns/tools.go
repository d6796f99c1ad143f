//go:build tools

package coredns

import (
	_ "github.com/coredns/coredns"
)
