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

// printVirtualServers prints the virtual and real servers of /proc/net/ip_vs, and the number
// of connections, but not the connections themselves, which reveal clients. The agent's image
// lacks ipvsadm and any program that prints files.
func printVirtualServers(out io.Writer, proc string) error {
	w := bufio.NewWriter(out)
	// /proc/net would be that of the process's first thread.
	directory := filepath.Join(proc, "thread-self/net")
	servers, err := os.Open(filepath.Join(directory, "ip_vs"))
	if errors.Is(err, fs.ErrNotExist) {
		_, err := fmt.Fprintln(out, "no virtual servers: the kernel has not loaded the module ip_vs")
		return err
	}
	if err != nil {
		return fmt.Errorf("reading the virtual servers: %w", err)
	}
	defer func() { _ = servers.Close() }() // only read
	if _, err := io.Copy(w, servers); err != nil {
		return fmt.Errorf("reading the virtual servers: %w", err)
	}
	connections, err := os.Open(filepath.Join(directory, "ip_vs_conn"))
	if err != nil {
		return errors.Join(w.Flush(), fmt.Errorf("counting the connections by IPVS: %w", err))
	}
	defer func() { _ = connections.Close() }() // likewise
	n := -1                                    // without the heading
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
