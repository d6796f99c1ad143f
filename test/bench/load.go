package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
)

const (
	// rounds is how often each rate is measured; the median counts.
	rounds = 3
	// window is how long that takes, after warmUp.
	window = 3 * time.Second
	warmUp = time.Second
	// loadPatience is how long anything may take: what is slow is measured.
	loadPatience = 10 * time.Second
	// connectors open connections at the same time, and streams carry bytes.
	connectors, streams = 16, 64
	// idleConnections are open while a proxy's memory is measured, if there are file descriptors for them.
	idleConnections = 10_000
	// perConnection are those that kube-proxy has for one: two sockets, and both ends of two pipes. No process
	// has more, and all have fewer than otherDescriptors besides.
	perConnection, otherDescriptors = 6, 1000
)

// requestSize is that of a request, and of its answer.
const requestSize = 64

// What the first byte of a request asks for.
const (
	oneAnswer  = 'o' // an answer, after which the connection goes on
	lastAnswer = 'l' // an answer and the end of the connection
	stream     = 's' // bytes until the client has enough
)

// answerRequests does what the requests of a connection ask for.
func answerRequests(conn net.Conn) {
	defer conn.Close()
	request := make([]byte, requestSize)
	for {
		if _, err := io.ReadFull(conn, request); err != nil {
			return
		}
		if request[0] == stream {
			sendBytes(conn)
			return
		}
		if _, err := conn.Write(request); err != nil || request[0] == lastAnswer {
			return
		}
	}
}

// sendBytes sends zeros until the client has enough.
func sendBytes(conn net.Conn) {
	zeros := make([]byte, 256<<10)
	for {
		if _, err := conn.Write(zeros); err != nil {
			return
		}
	}
}

// send sends a request.
func (s socket) send(kind byte) error {
	request := [requestSize]byte{kind}
	return uninterrupted(func() error {
		_, err := unix.Write(int(s), request[:])
		return err
	})
}

// ask sends a request and waits for its answer.
func (s socket) ask(kind byte) error {
	if err := s.send(kind); err != nil {
		return err
	}
	var answer [requestSize]byte
	for got := 0; got < requestSize; {
		n, err := s.read(answer[got:])
		if err == nil && n == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("waiting for an answer: %w", err)
		}
		got += n
	}
	return nil
}

// askOnce makes a request by a connection of its own, and returns how long both took. As the endpoint ends
// the connection first, no port of the node stays in use.
func askOnce(to netip.AddrPort, patience time.Duration) (time.Duration, error) {
	start := time.Now()
	s, _, err := dial(to, patience)
	if err != nil {
		return 0, err
	}
	defer s.close()
	if err := s.ask(lastAnswer); err != nil {
		return 0, err
	}
	took := time.Since(start)
	n, err := s.read(make([]byte, 1))
	if err == nil && n > 0 {
		err = errors.New("more than an answer has come")
	}
	if err != nil {
		return 0, fmt.Errorf("waiting for the end of a connection: %w", err)
	}
	return took, nil
}

// loaded is a proxy while its connections are measured.
type loaded struct {
	name    string
	client  *cluster.Place // a pod on its node
	process *cluster.Process
	service netip.AddrPort // whose connections are measured

	connections, oneStream, allStreams []rate
	kept, fresh                        []float64 // seconds that requests took, by one connection and by one each
	memory                             loadMemory
}

// rate is how much was done in a second, and the processor time that one of that took, in seconds.
type rate struct{ perSecond, proxyCPU, machineCPU float64 }

// round measures everything but memory once.
func (l *loaded) round(ctx context.Context) error {
	for _, one := range []struct {
		threads int
		work    func(context.Context, *atomic.Int64) error
		to      *[]rate
	}{
		{connectors, l.connectAll, &l.connections},
		{1, l.receive, &l.oneStream},
		{streams, l.receive, &l.allStreams},
	} {
		measured, err := l.rate(ctx, one.threads, one.work)
		if err != nil {
			return err
		}
		*one.to = append(*one.to, measured)
	}
	return errors.Join(l.requests(ctx), l.requestsByNew(ctx))
}

// rate has threads of the client work at the same time, and measures what they count.
func (l *loaded) rate(ctx context.Context, threads int, work func(context.Context, *atomic.Int64) error) (rate, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel(nil)
	var count atomic.Int64
	for range threads {
		group.Go(func() {
			if err := l.client.Do(func() error { return work(ctx, &count) }); err != nil {
				cancel(err)
			}
		})
	}
	if err := pass(ctx, warmUp); err != nil {
		return rate{}, err
	}
	before, err := l.counted(&count)
	if err != nil {
		return rate{}, err
	}
	if err := pass(ctx, window); err != nil {
		return rate{}, err
	}
	after, err := l.counted(&count)
	if err != nil {
		return rate{}, err
	}
	done := float64(after.count - before.count)
	if done == 0 {
		return rate{}, errors.New("nothing was transferred")
	}
	return rate{
		perSecond:  done / after.at.Sub(before.at).Seconds(),
		proxyCPU:   (after.proxy - before.proxy).Seconds() / done,
		machineCPU: (after.machine - before.machine).Seconds() / done,
	}, nil
}

// pass lets the time pass that something is measured.
func pass(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// counted is what is read at the start and at the end of a window.
type counted struct {
	at             time.Time
	count          int64
	proxy, machine time.Duration // processor time
}

func (l *loaded) counted(count *atomic.Int64) (counted, error) {
	machine, err := machineCPU()
	if err != nil {
		return counted{}, err
	}
	proxy, err := l.process.Usage()
	return counted{time.Now(), count.Load(), proxy.CPU, machine}, err
}

// connectAll opens one connection after the other.
func (l *loaded) connectAll(ctx context.Context, count *atomic.Int64) error {
	for ctx.Err() == nil {
		if _, err := askOnce(l.service, loadPatience); err != nil {
			return err
		}
		count.Add(1)
	}
	return nil
}

// receive receives the bytes of one connection.
func (l *loaded) receive(ctx context.Context, count *atomic.Int64) error {
	s, _, err := dial(l.service, loadPatience)
	if err != nil {
		return err
	}
	defer s.abort()
	if err := s.send(stream); err != nil {
		return err
	}
	buffer := make([]byte, 256<<10)
	for ctx.Err() == nil {
		n, err := s.read(buffer)
		if err == nil && n == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("receiving bytes: %w", err)
		}
		count.Add(int64(n))
	}
	return nil
}

// requests makes one request after the other by the same connection.
func (l *loaded) requests(ctx context.Context) error {
	return l.client.Do(func() error {
		s, _, err := dial(l.service, loadPatience)
		if err != nil {
			return err
		}
		defer s.abort()
		for begin := time.Now(); time.Since(begin) < window && ctx.Err() == nil; {
			start := time.Now()
			if err := s.ask(oneAnswer); err != nil {
				return err
			}
			l.kept = append(l.kept, time.Since(start).Seconds())
		}
		return ctx.Err()
	})
}

// requestsByNew makes one request after the other, each by a new connection.
func (l *loaded) requestsByNew(ctx context.Context) error {
	return l.client.Do(func() error {
		for begin := time.Now(); time.Since(begin) < window && ctx.Err() == nil; {
			took, err := askOnce(l.service, loadPatience)
			if err != nil {
				return err
			}
			l.fresh = append(l.fresh, took.Seconds())
		}
		return ctx.Err()
	})
}

// loadMemory is what is in use without connections and with so many, in bytes.
type loadMemory struct {
	connections   int
	before, after uint64 // of the proxy
	kernel        int64  // by how much it grew
}

// resident is with idleConnections. If there were fewer, the others would take as much as these.
func (m loadMemory) resident() uint64 {
	return m.before + uint64(float64(max(m.after, m.before)-m.before)*m.scale())
}

func (m loadMemory) scale() float64 { return float64(idleConnections) / float64(m.connections) }

// idle measures what idle connections take, and closes them. All have been used once.
func (l *loaded) idle(ctx context.Context, connections int) error {
	kernel, err := kernelMemory()
	if err != nil {
		return err
	}
	before, err := l.process.Usage()
	if err != nil {
		return err
	}
	open, err := l.open(ctx, connections)
	if err == nil {
		err = l.measureMemory(before, kernel, connections)
	}
	for _, s := range open {
		s.abort()
	}
	if err != nil {
		return fmt.Errorf("with %d connections: %w", len(open), err)
	}
	return install.Until(ctx, time.Minute, func(context.Context) error {
		has, err := sockets(l.process)
		if err == nil && has >= otherDescriptors {
			err = fmt.Errorf("%s still has %d sockets", l.name, has)
		}
		return err
	})
}

// measureMemory is given what was in use before there were connections.
func (l *loaded) measureMemory(before cluster.Usage, kernel int64, connections int) error {
	after, err := l.process.Usage()
	if err != nil {
		return err
	}
	full, err := kernelMemory()
	if err != nil {
		return err
	}
	l.memory = loadMemory{connections, before.Resident, after.Resident, max(0, full-kernel)}
	has, err := sockets(l.process)
	// Nothing else shows that the proxy is in the mode that is measured.
	if byItself := has >= 2*connections; err == nil && byItself != (l.name != kernelName) {
		err = fmt.Errorf("%s has %d sockets, which is another mode than expected", l.name, has)
	}
	return err
}

// open opens connections, each of which has transferred a request. It returns those that it has opened even
// if it fails.
func (l *loaded) open(ctx context.Context, count int) ([]socket, error) {
	var group sync.WaitGroup
	opened, errs := make([][]socket, connectors), make([]error, connectors)
	for i := range connectors {
		group.Go(func() {
			errs[i] = l.client.Do(func() error {
				for number := i; number < count && ctx.Err() == nil; number += connectors {
					s, _, err := dial(l.service, loadPatience)
					if err != nil {
						return err
					}
					opened[i] = append(opened[i], s)
					if err := s.ask(oneAnswer); err != nil {
						return err
					}
				}
				return ctx.Err()
			})
		})
	}
	group.Wait()
	return slices.Concat(opened...), errors.Join(errs...)
}

// loadMeasurements are what was measured of the connections of one proxy. Times are in seconds, memory in bytes.
type loadMeasurements struct {
	Connections    float64 `json:"connectionsPerSecond"`
	ConnectionCPU  float64 `json:"proxyCPUSecondsPerConnection"`
	ConnectionAll  float64 `json:"machineCPUSecondsPerConnection"`
	OneStream      float64 `json:"bytesPerSecondOfOneStream"`
	AllStreams     float64 `json:"bytesPerSecondOf64Streams"`
	ProxyCPU       float64 `json:"proxyCPUSecondsPerGB"`
	MachineCPU     float64 `json:"machineCPUSecondsPerGB"`
	RequestP50     float64 `json:"requestP50Seconds"`
	RequestP99     float64 `json:"requestP99Seconds"`
	NewP50         float64 `json:"connectionAndRequestP50Seconds"`
	NewP99         float64 `json:"connectionAndRequestP99Seconds"`
	ResidentBefore uint64  `json:"residentWithoutConnectionsBytes"`
	// IdleConnections are those from whose memory that of 10,000 follows.
	IdleConnections int    `json:"idleConnections"`
	Resident        uint64 `json:"residentWith10000ConnectionsBytes"`
	KernelMemory    int64  `json:"kernelMemoryOf10000ConnectionsBytes"`
}

// The rows in which more is better.
const (
	connectionsRow = "new connections/s"
	oneStreamRow   = "throughput of 1 stream"
	allStreamsRow  = "throughput of 64 streams"
)

// loadRows are the table of mode Userspace.
func loadRows() []row {
	of := func(value func(*loadMeasurements) float64) func(*measurements) float64 {
		return func(f *measurements) float64 { return value(f.Load) }
	}
	return []row{
		{connectionsRow, of(func(l *loadMeasurements) float64 { return l.Connections }), showCount},
		{"  proxy's CPU for each", of(func(l *loadMeasurements) float64 { return l.ConnectionCPU }), showTime},
		{"  machine's CPU for each", of(func(l *loadMeasurements) float64 { return l.ConnectionAll }), showTime},
		{oneStreamRow, of(func(l *loadMeasurements) float64 { return l.OneStream }), showThroughput},
		{allStreamsRow, of(func(l *loadMeasurements) float64 { return l.AllStreams }), showThroughput},
		{"  proxy's CPU for 1 GB", of(func(l *loadMeasurements) float64 { return l.ProxyCPU }), showTime},
		{"  machine's CPU for 1 GB", of(func(l *loadMeasurements) float64 { return l.MachineCPU }), showTime},
		{"request p50", of(func(l *loadMeasurements) float64 { return l.RequestP50 }), showTime},
		{"request p99", of(func(l *loadMeasurements) float64 { return l.RequestP99 }), showTime},
		{"connection and request p50", of(func(l *loadMeasurements) float64 { return l.NewP50 }), showTime},
		{"connection and request p99", of(func(l *loadMeasurements) float64 { return l.NewP99 }), showTime},
		{"resident memory", of(func(l *loadMeasurements) float64 { return float64(l.ResidentBefore) }), showMemory},
		{"  with 10,000 connections", of(func(l *loadMeasurements) float64 { return float64(l.Resident) }), showMemory},
		{"kernel memory of these", of(func(l *loadMeasurements) float64 { return float64(l.KernelMemory) }), showMemory},
	}
}

func showThroughput(bytes float64) string { return showMemory(bytes) + "/s" }

func (l *loaded) measurements() *loadMeasurements {
	median := func(rates []rate, of func(rate) float64) float64 {
		var values []float64
		for _, r := range rates {
			values = append(values, of(r))
		}
		return quantile(values, .5)
	}
	perSecond := func(r rate) float64 { return r.perSecond }
	return &loadMeasurements{
		Connections:   median(l.connections, perSecond),
		ConnectionCPU: median(l.connections, func(r rate) float64 { return r.proxyCPU }),
		ConnectionAll: median(l.connections, func(r rate) float64 { return r.machineCPU }),
		OneStream:     median(l.oneStream, perSecond),
		AllStreams:    median(l.allStreams, perSecond),
		ProxyCPU:      1e9 * median(l.allStreams, func(r rate) float64 { return r.proxyCPU }),
		MachineCPU:    1e9 * median(l.allStreams, func(r rate) float64 { return r.machineCPU }),
		RequestP50:    quantile(l.kept, .5), RequestP99: quantile(l.kept, .99),
		NewP50: quantile(l.fresh, .5), NewP99: quantile(l.fresh, .99),
		IdleConnections: l.memory.connections, ResidentBefore: l.memory.before, Resident: l.memory.resident(),
		KernelMemory: int64(float64(l.memory.kernel) * l.memory.scale()),
	}
}
