package iptables

import (
	"regexp"
	"slices"
	"testing"
)

func anyMatch(pattern string, lines []string) bool {
	re := regexp.MustCompile(pattern)
	return slices.ContainsFunc(lines, re.MatchString)
}

// TestRuleHash pairs rules as they are written with what iptables-save prints.
func TestRuleHash(t *testing.T) {
	for _, c := range []struct {
		written, saved string
		same           bool
	}{
		{`-m comment --comment "ns/svc cluster IP" -m tcp -p tcp -d 10.96.0.10 --dport 80 -j KUBE-SVC-X`,
			`-d 10.96.0.10/32 -p tcp -m comment --comment "something else" -m tcp --dport 80 -j KUBE-SVC-X`, true},
		{`-m tcp -p tcp -d 10.96.0.10 --dport 80 -j KUBE-SVC-X`, `-d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-Y`, false},
		{`-m tcp -p tcp -d 10.96.0.10 --dport 80 -j KUBE-SVC-X`, `-d 10.96.0.10/32 -p udp -m udp --dport 80 -j KUBE-SVC-X`, false},
		{`-m tcp -p tcp -d 10.96.0.10 --dport 80 ! -s 10.0.0.0/8 -j KUBE-MARK-MASQ`,
			`! -s 10.0.0.0/8 -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ`, true},
		{`! -s 10.0.0.0/8 -j KUBE-MARK-MASQ`, `-s 10.0.0.0/8 -j KUBE-MARK-MASQ`, false},
		{`-s 10.0.0.1 -j RETURN`, `-d 10.0.0.1/32 -j RETURN`, false},
		{`-m statistic --mode random --probability 0.3333333333 -j A`, `-m statistic --mode random --probability 0.33333333349 -j A`, true},
		{`-m statistic --mode random --probability 0.3333333333 -j A`, `-m statistic --mode random --probability 0.50000000000 -j A`, false},
		{`-j MARK --or-mark 0x4000`, `-j MARK --set-xmark 0x4000/0x4000`, true},
		{`-j MARK --xor-mark 0x4000`, `-j MARK --set-xmark 0x4000/0x0`, true},
		{`-j MARK --or-mark 0x4000`, `-j MARK --set-xmark 0x4000/0x0`, false},
		{`-m mark ! --mark 0x4000/0x4000 -j RETURN`, `-m mark ! --mark 0x4000/0x4000 -j RETURN`, true},
		{`-m mark ! --mark 0x4000/0x4000 -j RETURN`, `-m mark --mark 0x4000/0x4000 -j RETURN`, false},
		{`-d 10.0.0.1 -j REJECT`, `-d 10.0.0.1/32 -j REJECT --reject-with icmp-port-unreachable`, true},
		{`-d 10.0.0.1 -j REJECT`, `-d 10.0.0.1/32 -j REJECT --reject-with tcp-reset`, false},
		{`-m recent --name A --rcheck --seconds 600 --reap -j A`,
			`-m recent --rcheck --seconds 600 --reap --name A --mask 255.255.255.255 --rsource -j A`, true},
		{`-m recent --name A --rcheck --seconds 600 --reap -j A`,
			`-m recent --rcheck --seconds 60 --reap --name A --mask 255.255.255.255 --rsource -j A`, false},
		{`-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT`, `-m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT`, true},
		{`-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP`, `-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP`, true},
		{`-m conntrack --ctstate INVALID -j DROP`, `-m conntrack --ctstate INVALID -m nfacct --nfacct-name  ct_state_invalid_dropped_pkts -j DROP`, true},
		{`-m conntrack --ctstate NEW -j A`, `-m conntrack ! --ctstate NEW -j A`, false},
		{`-j DNAT --to-destination 10.0.0.1:80`, `-j DNAT --to-destination 10.0.0.1:80 --random`, false},
		{`-j MASQUERADE --random-fully`, `-j MASQUERADE`, false},
		{`-s fd00::1 -j A`, `-s fd00::1/128 -j A`, true},
		{`-m comment --comment "a \"quoted\" -j B" -j A`, `-j A`, true},
		{`-s 1.2.3.4 -m ipvs --vaddr 1.2.3.4 --vproto tcp --vport 80 -j DROP`, `-s 1.2.3.4/32 -m ipvs --vproto 6 --vaddr 1.2.3.4 --vport 80 -j DROP`, true},
		{`-m ipvs --vaddr fd00::4 --vproto udp --vport 80 -j DROP`, `-m ipvs --vproto 17 --vaddr fd00::4/128 --vport 80 -j DROP`, true},
		{`-m ipvs --vaddr 1.2.3.4 --vproto tcp --vport 80 -j DROP`, `-m ipvs --vproto 17 --vaddr 1.2.3.4 --vport 80 -j DROP`, false},
		{`-m set --match-set A dst,dst -j A`, `-m set --match-set A dst -j A`, false},
		{`-m set --match-set A dst,dst -m physdev ! --physdev-is-in -j A`, `-m physdev ! --physdev-is-in -m set --match-set A dst,dst -j A`, true},
		{`-m addrtype --dst-type LOCAL -j A`, `-m addrtype --src-type LOCAL -j A`, false},
	} {
		if same := ruleHash(c.written) == ruleHash(c.saved); same != c.same {
			t.Errorf("written %s\n  saved %s\n  taken as the same: %t", c.written, c.saved, same)
		}
	}
}
