package agentdeploy

import (
	"cmp"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// Where the agents and the controllers find the addresses of the API servers: a ConfigMap that
// their pods mount as a directory.
const (
	APIServersName = "nodeproxy-api-servers"
	APIServersKey  = "endpoints"
)

// apiServerPort is the name of the API servers' port in their EndpointSlices.
const apiServerPort = "https"

// APIServers returns the URLs of the ready API servers in the EndpointSlices of the Service
// default/kubernetes, sorted.
func APIServers(slicesOfKubernetes []*discoveryv1.EndpointSlice) []string {
	var out []string
	for _, slice := range slicesOfKubernetes {
		if slice.AddressType != discoveryv1.AddressTypeIPv4 && slice.AddressType != discoveryv1.AddressTypeIPv6 {
			continue
		}
		i := slices.IndexFunc(slice.Ports, func(p discoveryv1.EndpointPort) bool {
			return p.Name != nil && *p.Name == apiServerPort && p.Port != nil
		})
		if i < 0 {
			continue
		}
		port := uint16(*slice.Ports[i].Port)
		for _, endpoint := range slice.Endpoints {
			if endpoint.Conditions.Ready != nil && !*endpoint.Conditions.Ready {
				continue
			}
			for _, text := range endpoint.Addresses[:min(1, len(endpoint.Addresses))] { // as with all endpoints
				if address, err := netip.ParseAddr(text); err == nil {
					out = append(out, "https://"+netip.AddrPortFrom(address, port).String())
				}
			}
		}
	}
	slices.SortFunc(out, cmp.Compare)
	return slices.Compact(out)
}

// IsServiceAddress reports whether a URL leads to one of a Service's cluster IPs.
func IsServiceAddress(text string, clusterIPs []string) bool {
	parsed, err := url.Parse(text)
	if err != nil {
		return false
	}
	address, err := netip.ParseAddr(parsed.Hostname())
	return err == nil && slices.ContainsFunc(clusterIPs, func(ip string) bool {
		one, err := netip.ParseAddr(ip)
		return err == nil && one == address
	})
}

// APIServersFile returns the value of the ConfigMap for URLs: one per line.
func APIServersFile(urls []string) string { return strings.Join(urls, "\n") + "\n" }
