package detection

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// node is that of the calling thread.
type node struct {
	ciliumSocket string
}

var _ place = (*node)(nil)

func (*node) device(name string) (bool, error) {
	_, err := netlink.LinkByName(name)
	var missing netlink.LinkNotFoundError
	switch {
	case err == nil:
		return true, nil
	case errors.As(err, &missing):
		return false, nil
	default:
		return false, fmt.Errorf("looking for device %s: %w", name, err)
	}
}

func (n *node) leads(address, device string) (bool, error) {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return n.device(device) // to classify the error; none: it has just appeared
	}
	routes, err := netlink.RouteGet(net.ParseIP(address))
	if err != nil {
		return false, nil //nolint:nilerr // no route
	}
	return len(routes) > 0 && routes[0].LinkIndex == link.Attrs().Index, nil
}

func (*node) table(family dataplane.Family, name string) (bool, error) {
	exists, err := nfTables(unix.NFT_MSG_GETTABLE, family, nl.NewRtAttr(unix.NFTA_TABLE_NAME, nl.ZeroTerminated(name)))
	if err != nil {
		return false, fmt.Errorf("looking for nf_tables table %s of %s: %w", name, family, err)
	}
	return exists, nil
}

func (*node) canary(c Canary) (bool, error) {
	exists, err := false, error(nil)
	if c.Legacy {
		exists, err = legacyHas(c.Family, c.Table, CanaryChain)
	} else {
		exists, err = nfTables(unix.NFT_MSG_GETCHAIN, c.Family,
			nl.NewRtAttr(unix.NFTA_CHAIN_TABLE, nl.ZeroTerminated(c.Table)), nl.NewRtAttr(unix.NFTA_CHAIN_NAME, nl.ZeroTerminated(CanaryChain)))
	}
	if err != nil {
		return false, fmt.Errorf("looking for %s: %w", c, err)
	}
	return exists, nil
}

// nfTables asks nf_tables for one object and reports whether there is one.
func nfTables(message int, family dataplane.Family, attributes ...*nl.RtAttr) (bool, error) {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|message, 0)
	protocol := uint8(unix.AF_INET)
	if family == dataplane.IPv6 {
		protocol = unix.AF_INET6
	}
	request.AddData(&nl.Nfgenmsg{NfgenFamily: protocol, Version: nl.NFNETLINK_V0})
	for _, a := range attributes {
		request.AddData(a)
	}
	_, err := request.Execute(unix.NETLINK_NETFILTER, 0)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.ENOENT):
		return false, nil
	// A kernel without nf_tables, or without the family, has none.
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EAFNOSUPPORT):
		return false, nil
	default:
		return false, err
	}
}

const (
	ciliumTimeout = 500 * time.Millisecond
	// maxCilium bounds what is read of its answer, in bytes.
	maxCilium = 4 << 20
)

func (n *node) ciliumReplaces(ctx context.Context) (replaces, known bool) {
	if _, err := os.Stat(n.ciliumSocket); err != nil {
		return false, false
	}
	client := &http.Client{Timeout: ciliumTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", n.ciliumSocket)
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/v1/healthz", http.NoBody)
	if err != nil {
		return false, false
	}
	response, err := client.Do(request)
	if err != nil {
		return false, false
	}
	defer func() { _ = response.Body.Close() }() // only read from
	var answer struct {
		Replacement *struct {
			Mode string `json:"mode"`
		} `json:"kube-proxy-replacement"`
	}
	if json.NewDecoder(io.LimitReader(response.Body, maxCilium)).Decode(&answer) != nil || answer.Replacement == nil {
		return false, false
	}
	// Older releases report Strict. What they call Partial or Probe runs beside kube-proxy.
	mode := answer.Replacement.Mode
	return mode == "True" || mode == "Strict", true
}
