package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"path/filepath"
	"runtime/pprof"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/gateway/upstream"
)

// The processes that stand beside the gateway's are this test binary in another
// role, which the environment names.
const (
	envRole = "SLUICE_BENCH_ROLE"
	envNode = "SLUICE_BENCH_NODE"
	// envProfile names a directory that CPU and allocation profiles of the roles
	// go to; "" = none are made.
	envProfile = "SLUICE_BENCH_PROFILE"
)

func TestMain(m *testing.M) {
	role := os.Getenv(envRole)
	if role == "" {
		os.Exit(m.Run())
	}
	if err := play(role, os.Getenv(envNode)); err != nil {
		fmt.Fprintln(os.Stderr, role+":", err)
		os.Exit(1)
	}
}

// play serves as the role says until standard input ends, which it does with the
// process that started this one.
func play(role, node string) error {
	handler, end, err := handlerOf(role, node)
	if err != nil {
		return err
	}
	defer end()
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	// The deadlines are the gateway's: each is a timer to every request.
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	fmt.Println(l.Addr())
	save, err := profile(role)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	err = save()
	_ = server.Close()
	if e := <-ended; !errors.Is(e, http.ErrServerClosed) {
		return e
	}
	return err
}

func handlerOf(role, node string) (handler http.Handler, end func(), err error) {
	switch role {
	case "node":
		return http.HandlerFunc(answer), func() {}, nil
	case "bare":
		transport := bareTransport()
		return proxyTo(node, transport), transport.CloseIdleConnections, nil
	case "pool":
		pool, err := upstream.New(upstream.Options{Nodes: []string{"http://" + node}, Observer: newCounter()})
		if err != nil {
			return nil, nil, err
		}
		return pooled{proxyTo(node, viaPool{pool})}, pool.Close, nil
	default:
		return nil, nil, fmt.Errorf("no such role")
	}
}

// answer is the node's: what a small catch-up read is answered with, at the
// least cost.
func answer(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Ursula-Protocol", "1")
	h.Set("Ursula-Cluster-Id", "bench")
	h.Set("Stream-Next-Offset", "00000000000000000042")
	if r.Method != http.MethodGet {
		return
	}
	h.Set("Stream-Up-To-Date", "true")
	h.Set("Cache-Control", "no-store")
	h.Set("Etag", `"00000000000000000000:00000000000000000042"`)
	_, _ = io.WriteString(w, smallBody)
}

const smallBody = `[{"n":1,"text":"a small event, as an agent's turn makes them by the dozen"}]`

// bareTransport has the settings of the pool's, one by one.
func bareTransport() *http.Transport {
	dialer := &net.Dialer{
		Timeout:         upstream.ConnectTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 3},
	}
	return &http.Transport{
		DialContext:            dialer.DialContext,
		DisableCompression:     true,
		MaxIdleConns:           2048,
		MaxIdleConnsPerHost:    512,
		IdleConnTimeout:        500 * time.Millisecond,
		TLSHandshakeTimeout:    upstream.ConnectTimeout,
		MaxResponseHeaderBytes: 64 << 10,
		ReadBufferSize:         16 << 10,
		WriteBufferSize:        16 << 10,
	}
}

func proxyTo(node string, transport http.RoundTripper) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "http", node, ""
		},
		Transport:  transport,
		BufferPool: &buffers{},
	}
}

// buffers is the gateway's BufferPool.
type buffers struct{ pool sync.Pool }

const bufferSize = 32 << 10

// Get implements httputil.BufferPool.
func (b *buffers) Get() []byte {
	if buf, ok := b.pool.Get().(*[bufferSize]byte); ok {
		return buf[:]
	}
	return make([]byte, bufferSize)
}

// Put implements httputil.BufferPool.
func (b *buffers) Put(buf []byte) { b.pool.Put((*[bufferSize]byte)(buf)) }

// pooled and viaPool are the gateway's way to the pool, without the gateway: the
// exchange goes on with the client's own context.
type pooled struct{ next http.Handler }

type clientContext struct{}

func (p pooled) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), clientContext{}, r.Context())))
}

type viaPool struct{ pool *upstream.Pool }

// RoundTrip implements http.RoundTripper.
func (v viaPool) RoundTrip(out *http.Request) (*http.Response, error) {
	ctx, _ := out.Context().Value(clientContext{}).(context.Context)
	return v.pool.Send(ctx, out, upstream.Meta{Path: out.URL.Path, Read: true, CatchUp: true})
}

// counter observes as the gateway does: one counter to every exchange.
type counter struct {
	upstream.Observer
	exchanges *prometheus.CounterVec
}

func newCounter() counter {
	return counter{exchanges: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "exchanges"}, []string{"node", "outcome"})}
}

func (c counter) Exchanged(node, outcome string, _ time.Duration) {
	c.exchanges.WithLabelValues(node, outcome).Inc()
}
func (counter) NodeChanged(string, string) {}
func (counter) ClusterChanged(string)      {}

// profile begins the role's profiles where they are asked for; save ends them.
func profile(role string) (save func() error, err error) {
	dir := os.Getenv(envProfile)
	if dir == "" {
		return func() error { return nil }, nil
	}
	cpu, err := os.Create(filepath.Join(dir, role+".cpu"))
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(cpu); err != nil {
		return nil, err
	}
	return func() error {
		pprof.StopCPUProfile()
		if err := cpu.Close(); err != nil {
			return err
		}
		allocs, err := os.Create(filepath.Join(dir, role+".allocs"))
		if err != nil {
			return err
		}
		if err := pprof.Lookup("allocs").WriteTo(allocs, 0); err != nil {
			return err
		}
		return allocs.Close()
	}, nil
}
