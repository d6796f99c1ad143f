package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// printVirtualServers prints what the kernel says of IPVS: virtual servers and real
// ones, as /proc/net/ip_vs has them, and how many connections there are, but none of
// them, since they are of clients. The agent's image has no ipvsadm, nor any program
// that could read a file.
func printVirtualServers(out io.Writer, proc string) error {
	w := bufio.NewWriter(out)
	// Of this thread: /proc/net is that of the process's first one.
	folder := filepath.Join(proc, "thread-self/net")
	servers, err := os.Open(filepath.Join(folder, "ip_vs"))
	if errors.Is(err, fs.ErrNotExist) {
		_, err := fmt.Fprintln(out, "no virtual servers: the kernel has not loaded the module ip_vs")
		return err
	}
	if err != nil {
		return fmt.Errorf("reading the virtual servers: %w", err)
	}
	defer func() { _ = servers.Close() }() // it is only read
	if _, err := io.Copy(w, servers); err != nil {
		return fmt.Errorf("reading the virtual servers: %w", err)
	}
	connections, err := os.Open(filepath.Join(folder, "ip_vs_conn"))
	if err != nil {
		return errors.Join(w.Flush(), fmt.Errorf("counting the connections by IPVS: %w", err))
	}
	defer func() { _ = connections.Close() }() // likewise
	n := -1                                    // the first line is a heading
	lines := bufio.NewScanner(connections)
	for lines.Scan() {
		n++
	}
	if err := lines.Err(); err != nil {
		return errors.Join(w.Flush(), fmt.Errorf("counting the connections by IPVS: %w", err))
	}
	fmt.Fprintf(w, "connections: %d\n", max(n, 0))
	return w.Flush()
}
