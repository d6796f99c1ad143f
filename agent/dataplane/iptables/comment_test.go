package iptables

import (
	"strings"
	"testing"
)

// iptables-save prints a comment without quotes if it has no spaces, so that one of another
// program may look like an option.
func TestCommentsThatLookLikeOptions(t *testing.T) {
	const spec = "-m comment --comment -j -j KUBE-SVC-A"
	if target, ok := jumpTarget(spec); !ok || target != "KUBE-SVC-A" {
		t.Errorf("it jumps to %q, %t", target, ok)
	}
	if got := comment(spec); got != "-j" {
		t.Errorf("the comment is %q", got)
	}
	if ruleHash(spec) != ruleHash("-j KUBE-SVC-A") {
		t.Error("the comment changes the hash")
	}
}

func TestChainThatIsDeclaredTwice(t *testing.T) {
	k := newKernelState()
	const text = "*nat\n:KUBE-SVC-A - [0:0]\n-A KUBE-SVC-A -j RETURN\n:KUBE-SVC-A - [0:0]\n-A KUBE-SVC-A -j RETURN\nCOMMIT\n"
	if err := k.read(strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	if got := k.chains[chainID{nat, "KUBE-SVC-A"}].count; got != 1 {
		t.Errorf("%d rules after the second declaration, want 1", got)
	}
}
