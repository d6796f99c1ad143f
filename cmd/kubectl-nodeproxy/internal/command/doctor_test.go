package command

import (
	"strings"
	"testing"
)

func TestOneService(t *testing.T) {
	for argument, want := range map[string]string{"shop/web": "shop/web", "web": "", "shop/": "", "/web": "", "a/b/c": ""} {
		got, err := oneService([]string{argument})
		switch {
		case want == "" && (err == nil || !strings.Contains(err.Error(), "give NAMESPACE/SERVICE")):
			t.Errorf("%q: error %v", argument, err)
		case want != "" && (err != nil || got.String() != want):
			t.Errorf("%q: %v, %v", argument, got, err)
		}
	}
	if got, err := oneService(nil); got != nil || err != nil {
		t.Errorf("without argument: %v, %v", got, err)
	}
}
