package ipvs

import (
	"errors"
	"io"
	"testing"

	moby "github.com/moby/ipvs"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// TestLibraryNumber: the library uses the number that we set. No family of this kernel has it, with
// or without IPVS, and the kernel reports that.
func TestLibraryNumber(t *testing.T) {
	const unused = 0x7fff
	numberMu.Lock()
	defer numberMu.Unlock()
	logrus.SetOutput(io.Discard) // as openIPVS does
	h, err := moby.New("")
	if err != nil {
		t.Skipf("no generic netlink here: %v", err)
	}
	defer h.Close()
	former := libraryNumber
	defer func() { libraryNumber = former }()
	libraryNumber = unused
	defer func() {
		if recover() != nil {
			t.Error("the library asks by another number")
		}
	}()
	if _, err := h.GetConfig(); !errors.Is(err, unix.ENOENT) {
		t.Errorf("the library asks by another number: %v", err)
	}
	if _, err := timeouts(h); !errors.Is(err, errRenumbered) {
		t.Errorf("it is not noticed that the number is not that of IPVS: %v", err)
	}
}
