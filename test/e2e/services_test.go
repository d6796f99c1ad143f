package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/load"
)

// dnsAddress is the cluster IP of kube-dns.
const dnsAddress = "10.96.0.10:53"

// answer makes a connection, notes how it went, and returns the answer.
func (r *run) answer(from *cluster.Place, network, address string) cluster.Answer {
	r.Helper()
	r.tried++
	answer, err := from.Dial(r.ctx, network, address)
	if err != nil {
		r.failed++
		load.Lost(r, "%v", err)
	}
	return answer
}

// reaches checks that all of the servers, and no others, answer at an address.
func (r *run) reaches(from *cluster.Place, network, address string, servers ...string) {
	r.Helper()
	tried, others, err := r.all(from, network, address, servers)
	r.tried += tried
	if err = errors.Join(others, err); err != nil {
		r.failed++
		load.Lost(r, "%v", err)
	}
}

// all makes connections until all of the servers have answered at an address. It returns how many,
// whether others have answered or not all of them, and why one failed.
func (r *run) all(from *cluster.Place, network, address string, servers []string) (tried int, others, err error) {
	var seen []string
	for range 40 { // with two servers, one of them stays out once in 10^12 runs
		tried++
		answer, err := from.Dial(r.ctx, network, address)
		if err != nil {
			return tried, nil, err
		}
		if !slices.Contains(servers, answer.Server) {
			return tried, fmt.Errorf("%s %s from %s: %s answers, want one of %q", network, address, from.Name(), answer.Server, servers), nil
		}
		if !slices.Contains(seen, answer.Server) {
			seen = append(seen, answer.Server)
		}
		if len(seen) == len(servers) {
			return tried, nil, nil
		}
	}
	return tried, fmt.Errorf("%s %s from %s: of %q only %q answer", network, address, from.Name(), servers, seen), nil
}

// webIsServed waits until the nodes know of all pods that answer: that a pod is
// ready comes to them a moment later, of each Service and IP family by itself. Once
// one has answered, no connection may fail.
func (r *run) webIsServed() {
	r.Helper()
	var services corev1.ServiceList
	r.must(r.cluster.Client().List(r.ctx, &services, client.InNamespace(shop)))
	web, served := r.web(), 0
	for i := range services.Items {
		spec := &services.Items[i].Spec
		if spec.Selector["app"] != "web" || spec.ClusterIP == corev1.ClusterIPNone || spec.SessionAffinity == corev1.ServiceAffinityClientIP {
			continue
		}
		served++
		for _, ip := range spec.ClusterIPs {
			for _, from := range r.clients() {
				address, answered := net.JoinHostPort(ip, "80"), false
				r.until(10*time.Second, "all pods of "+services.Items[i].Name+" answer", func() error {
					tried, others, err := r.all(from, "tcp", address, web)
					if answered = answered || tried > 1; answered && err != nil {
						r.tried, r.failed = r.tried+tried, r.failed+1
						load.FatalLoss(r, "%s has answered before: %v", address, err)
					}
					return errors.Join(others, err)
				})
			}
		}
	}
	if least := 5; served < least {
		r.Fatalf("%d Services select the pods that answer, want %d at least", served, least)
	}
}

// everyType connects to a Service of every type, from the pods and from the nodes
// and from outside, over TCP and UDP and both IP families.
func everyType(r *run) {
	web, clients, outside := r.web(), r.clients(), r.cluster.Outside()
	inside := []*cluster.Place{}
	for _, node := range r.cluster.Nodes() {
		inside = append(inside, clients[node.Name()], node.Place)
	}
	everywhere := append(slices.Clone(inside), outside)
	both := func(froms []*cluster.Place, ips []string, port int) {
		for _, from := range froms {
			for _, ip := range ips {
				for _, network := range []string{"tcp", "udp"} {
					r.reaches(from, network, net.JoinHostPort(ip, strconv.Itoa(port)), web...)
				}
			}
		}
	}
	both(inside, r.service("cluster-ip").Spec.ClusterIPs, 80)
	both(inside, r.service("node-port").Spec.ClusterIPs, 80)
	both(everywhere, []string{balancedIP, balancedIP6}, 80)
	both(everywhere, []string{externalIP, externalIP6}, 80)
	for _, node := range r.cluster.Nodes() {
		both(everywhere, []string{node.Address().String(), node.Address6().String()}, 30080)
	}
	r.local(web)
	for _, from := range inside { // the first answer states which server it is
		sticky := r.service("sticky").Spec.ClusterIP + ":80"
		first := r.answer(from, "tcp", sticky).Server
		for range 10 {
			if again := r.answer(from, "tcp", sticky).Server; again != first {
				r.Errorf("session affinity: %s answers %s, before it was %s", again, from.Name(), first)
			}
		}
	}
}

// local checks externalTrafficPolicy Local: only pods of the node that is asked
// answer, and they see the client's own address.
func (r *run) local(web []string) {
	outside := r.cluster.Outside()
	for i, node := range r.cluster.Nodes() {
		address := net.JoinHostPort(node.Address().String(), "30081")
		r.reaches(outside, "tcp", address, web[i])
		if seen := r.answer(outside, "tcp", address).Client.Addr().String(); seen != "172.20.0.200" {
			r.Errorf("externalTrafficPolicy Local: the server sees %s, not the client's address", seen)
		}
	}
	r.reaches(outside, "tcp", localIP+":80", web[1])
}

// names looks up names of Services through the cluster IP of kube-dns, from the
// pods of each node, and connects to what they report.
func names(r *run) {
	for _, place := range r.clients() {
		for _, network := range []string{"udp", "tcp"} {
			resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (conn net.Conn, err error) {
				err = place.Do(func() (err error) {
					conn, err = (&net.Dialer{}).DialContext(ctx, network, dnsAddress)
					return err
				})
				return conn, err
			}}
			r.lookUp(resolver, place)
		}
	}
}

// lookUp looks up addresses (A and AAAA) and SRV records.
func (r *run) lookUp(resolver *net.Resolver, from *cluster.Place) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.ctx, 10*time.Second)
	defer cancel()
	look := func(name string, expected []string) {
		r.tried++
		got, err := resolver.LookupHost(ctx, name+"."+shop+".svc.cluster.local.")
		slices.Sort(got)
		slices.Sort(expected)
		if err != nil || !slices.Equal(normal(got), normal(expected)) {
			r.failed++
			load.Lost(r, "%s: %s is %q, want %q: %v", from.Name(), name, got, expected, err)
		}
	}
	look("cluster-ip", slices.Clone(r.service("cluster-ip").Spec.ClusterIPs))
	var pods []string
	for _, pod := range r.podsOf("web") {
		pods = append(pods, pod.Status.PodIP)
	}
	look("headless", pods)
	r.tried++
	_, records, err := resolver.LookupSRV(ctx, "tcp", "tcp", "cluster-ip."+shop+".svc.cluster.local.")
	if err != nil || len(records) != 1 || records[0].Port != 80 || !strings.HasPrefix(records[0].Target, "cluster-ip.") {
		r.failed++
		load.Lost(r, "%s: SRV of cluster-ip: %s, %v", from.Name(), fmt.Sprint(records), err)
	}
	for _, ip := range r.service("cluster-ip").Spec.ClusterIPs {
		r.answer(from, "tcp", net.JoinHostPort(ip, "80"))
	}
}

// normal writes addresses in one way.
func normal(texts []string) []string {
	var out []string
	for _, text := range texts {
		if address, err := netip.ParseAddr(text); err == nil {
			text = address.String()
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return out
}
