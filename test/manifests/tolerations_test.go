package manifests_test

import (
	"os"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"
)

// tolerated returns for how many seconds a pod stays on a node with a taint, as
// the cluster counts it: by the first toleration that fits. nil: for ever.
func tolerated(t *testing.T, pod *corev1.PodSpec, taint corev1.Taint) *int64 {
	t.Helper()
	for i := range pod.Tolerations {
		if pod.Tolerations[i].ToleratesTaint(klog.Background(), &taint, false) {
			return pod.Tolerations[i].TolerationSeconds
		}
	}
	t.Fatalf("taint %s is not tolerated", taint.Key)
	return nil
}

// A standby is of use only where it runs: the replica of a node that is gone
// moves, that of a node that waits for its Services stays.
func TestControllerLeavesUnreachableNodes(t *testing.T) {
	text, err := os.ReadFile(configDirectory("manager", "deployment.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var deployment appsv1.Deployment
	if err := yaml.UnmarshalStrict(text, &deployment); err != nil {
		t.Fatal(err)
	}
	pod := &deployment.Spec.Template.Spec
	unreachable := tolerated(t, pod, corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute})
	if unreachable == nil || *unreachable != 60 {
		t.Errorf("it stays on an unreachable node for %v s (nil: for ever), want 60", unreachable)
	}
	for _, taint := range []corev1.Taint{
		{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute},
		{Key: "node.cloudprovider.kubernetes.io/uninitialized", Effect: corev1.TaintEffectNoSchedule},
		{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule},
	} {
		if seconds := tolerated(t, pod, taint); seconds != nil {
			t.Errorf("it leaves a node with the taint %s after %d s, want never", taint.Key, *seconds)
		}
	}
}
