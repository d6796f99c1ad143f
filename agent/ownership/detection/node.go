package detection

import (
	"context"
	"encoding/binary"
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
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
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
		return false, fmt.Errorf("detecting device %s: %w", name, err)
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

func (*node) table(family dataplane.Family, name string) (uint64, error) {
	answer, err := nfTables(unix.NFT_MSG_GETTABLE, family, nlattr.AppendText(nil, unix.NFTA_TABLE_NAME, name))
	if err != nil {
		return 0, fmt.Errorf("detecting nf_tables table %s of %s: %w", name, family, err)
	}
	if answer == nil {
		return 0, nil
	}
	return handleOf(answer), nil
}

func (*node) canary(c Canary) (bool, error) {
	exists, err := false, error(nil)
	if c.Legacy {
		exists, err = legacyHas(c.Family, c.Table, CanaryChain)
	} else {
		var answer []byte
		attributes := nlattr.AppendText(nil, unix.NFTA_CHAIN_TABLE, c.Table)
		answer, err = nfTables(unix.NFT_MSG_GETCHAIN, c.Family, nlattr.AppendText(attributes, unix.NFTA_CHAIN_NAME, CanaryChain))
		exists = answer != nil
	}
	if err != nil {
		return false, fmt.Errorf("detecting %s: %w", c, err)
	}
	return exists, nil
}

// nfTables asks nf_tables for one object and returns the answer; nil: there is none.
func nfTables(message int, family dataplane.Family, attributes []byte) ([]byte, error) {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|message, 0)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: family.Number(), Version: nl.NFNETLINK_V0})
	request.AddRawData(attributes)
	answers, err := request.Execute(unix.NETLINK_NETFILTER, 0)
	switch {
	case err == nil && len(answers) > 0:
		return answers[0], nil
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil, nil
	// A kernel without nf_tables, or without the family, has none.
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EAFNOSUPPORT):
		return nil, nil
	default:
		return nil, err
	}
}

// attrTableHandle is NFTA_TABLE_HANDLE, which golang.org/x/sys/unix lacks.
const attrTableHandle = 4

// handleOf returns the handle in an answer about a table, which no other table of that name has.
func handleOf(answer []byte) uint64 {
	for kind, value := range nlattr.All(answer[min(nl.SizeofNfgenmsg, len(answer)):]) {
		if kind == attrTableHandle && len(value) == 8 {
			return binary.BigEndian.Uint64(value)
		}
	}
	return 1
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
