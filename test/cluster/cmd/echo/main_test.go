package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// serverVariable makes this test binary be the server.
const serverVariable = "NODEPROXY_TEST_ECHO"

func TestMain(m *testing.M) {
	if os.Getenv(serverVariable) != "" {
		os.Args = append(os.Args[:1], strings.Fields(os.Getenv(serverVariable))...)
		main()
		return
	}
	os.Exit(m.Run())
}

// freePort returns a port without a listener.
func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// startServer starts the server with arguments and returns it and what it
// prints once it is ready.
func startServer(t *testing.T, args string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serverVariable+"="+args)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "ready" {
		t.Fatalf("the server reports %q: %v", lines.Text(), lines.Err())
	}
	return cmd, lines
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func TestAServerThatDrainsGoesOnServing(t *testing.T) {
	lines, web := freePort(t), freePort(t)
	cmd, out := startServer(t, fmt.Sprintf("-name pod-1 -drain 2s %s/tcp %s/http", lines, web))
	if status, _ := get(t, "http://"+web+"/readyz"); status != http.StatusOK {
		t.Errorf("/readyz answers %d", status)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if !out.Scan() || !strings.HasPrefix(out.Text(), "ending") {
		t.Fatalf("after SIGTERM the server reports %q: %v", out.Text(), out.Err())
	}
	if status, _ := get(t, "http://"+web+"/readyz"); status != http.StatusServiceUnavailable {
		t.Errorf("while it drains /readyz answers %d", status)
	}
	if _, body := get(t, "http://"+web); !strings.HasPrefix(body, "pod-1 127.0.0.1:") {
		t.Errorf("while it drains the server answers %q", body)
	}
	conn, err := net.Dial("tcp", lines)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintln(conn, "?")
	if answer, err := bufio.NewReader(conn).ReadString('\n'); !strings.HasPrefix(answer, "pod-1 ") {
		t.Errorf("while it drains the server answers %q, %v", answer, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the server ended: %v", err)
	}
}

func TestAServerThatDoesNotDrainEndsAtOnce(t *testing.T) {
	cmd, _ := startServer(t, "-name pod-1 "+freePort(t)+"/udp")
	begin := time.Now()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || time.Since(begin) > 10*time.Second {
		t.Errorf("the server ended after %s: %v", time.Since(begin), err)
	}
}

// A machine may have no processor for the server for a while: what arrives meanwhile is answered later.
func TestNoDatagramIsLostMeanwhile(t *testing.T) {
	const count = 450 // in three seconds of the most that a test sends to one server
	address := freePort(t)
	cmd, _ := startServer(t, "-name pod-1 "+address+"/udp")
	conn, err := net.Dial("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := errors.Join(conn.(*net.UDPConn).SetReadBuffer(4<<20), conn.SetReadDeadline(time.Now().Add(20*time.Second)), cmd.Process.Signal(syscall.SIGSTOP)); err != nil {
		t.Fatal(err)
	}
	for range count {
		if _, err := conn.Write([]byte("?\n")); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	for n := range count {
		if _, err := conn.Read(buf); err != nil {
			t.Fatalf("after %d answers of %d: %v", n, count, err)
		}
	}
}
