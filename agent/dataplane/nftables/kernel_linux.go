package nftables

import "github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"

func openKernel() (kernel, error) { return nft.Open() }

func openMonitor() (monitor, error) { return nft.OpenMonitor() }

func openAddressMonitor(family byte) (monitor, error) { return nft.OpenAddressMonitor(family) }
