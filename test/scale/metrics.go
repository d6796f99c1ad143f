package main

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// writes counts requests to the API server.
type writes struct {
	// rendered are those of ServiceProxyRules and NodeProxyRules with their reports, of whichever
	// kind; leases those of Leases.
	rendered, leases int
	// throttled are requests of any kind that were answered with 429.
	throttled int
}

func (w writes) since(before writes) writes {
	return writes{w.rendered - before.rendered, w.leases - before.leases, w.throttled - before.throttled}
}

// requests matches one series of the API server's counter of requests.
var requests = regexp.MustCompile(`(?m)^apiserver_request_total\{(.*)\} (\S+)$`)

// readWrites reads the counters of the API server.
func readWrites(ctx context.Context, c *cluster.Cluster) (writes, error) {
	client, err := rest.HTTPClientFor(c.RESTConfig())
	if err != nil {
		return writes{}, err
	}
	s := &stream{client: client, host: c.RESTConfig().Host}
	response, err := s.get(ctx, "/metrics", nil, nil)
	if err != nil {
		return writes{}, err
	}
	defer response.Body.Close()
	var text bytes.Buffer
	if _, err := text.ReadFrom(response.Body); err != nil {
		return writes{}, err
	}
	return parseWrites(text.String())
}

func parseWrites(text string) (out writes, err error) {
	for _, found := range requests.FindAllStringSubmatch(text, -1) {
		value, err := strconv.ParseFloat(found[2], 64)
		if err != nil {
			return out, fmt.Errorf("reading %s: %w", found[0], err)
		}
		has := func(label string, values ...string) bool {
			for _, v := range values {
				if strings.Contains(found[1], label+`="`+v+`"`) {
					return true
				}
			}
			return false
		}
		n := int(value)
		if has("code", "429") {
			out.throttled += n
		}
		if !has("verb", "POST", "PUT", "PATCH", "APPLY", "DELETE") {
			continue
		}
		switch {
		case has("group", "nodeproxy.io"):
			out.rendered += n
		case has("resource", "leases"):
			out.leases += n
		}
	}
	return out, nil
}
