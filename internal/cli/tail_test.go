package cli

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice/internal/syncbuf"
	"sluice/internal/ursulatest"
)

// A tail over cut answers, a restart and refusals that pass: no message twice, none
// missing.
func TestTailThroughFaults(t *testing.T) {
	n := newNode(t)
	n.create(t, "orders", "application/json")
	var out, errOut syncbuf.Buffer
	done := make(chan int, 1)
	go func() {
		done <- run(t.Context(), environment(n.env, nil, &out, &errOut), []string{"stream", "tail", "acme/orders", "--offset", "-1"})
	}()
	var whole strings.Builder
	for i := range 12 {
		switch i % 4 {
		case 1:
			n.SetFault(gets(ursulatest.Times(1, ursulatest.CutAfter(40+i))))
			n.Restart()
		case 2:
			n.SetFault(gets(ursulatest.Times(1, ursulatest.Status(http.StatusTooManyRequests, http.Header{"Retry-After": {"1"}},
				[]byte(`{"error":{"code":"LIVE_READS_EXHAUSTED","message":"Later."}}`)))))
			n.Restart()
		default:
		}
		message := fmt.Sprintf(`{"n":%d}`, i)
		if code := n.ask(t, http.MethodPost, "orders", "application/json", message); code != http.StatusNoContent {
			t.Fatalf("append: %d", code)
		}
		whole.WriteString(message + "\n")
		eventually(t, "the message is told", func() bool { return strings.HasSuffix(out.String(), message+"\n") })
	}
	command(t, n.env, "stream", "close", "acme/orders")
	select {
	case code := <-done:
		want(t, code, out.String(), errOut.String(), exitDone, whole.String(), "trying again in")
	case <-time.After(30 * time.Second):
		t.Fatalf("the tail goes on: %s", errOut.String())
	}
}

// gets are faults of reads only.
func gets(f ursulatest.Fault) ursulatest.Fault {
	return ursulatest.Match(func(r *http.Request) bool { return r.Method == http.MethodGet }, f)
}

// A tail that cannot go on says why, and where to go on from.
func TestTailStops(t *testing.T) {
	for status, tc := range map[int]struct{ code, says string }{
		401: {"CREDENTIAL_EXPIRED", "put a valid one into TONBO_API_KEY"},
		403: {"FORBIDDEN", "use another key"},
		404: {"STREAM_NOT_FOUND", "'sluice stream list'"},
		410: {"STREAM_GONE", "what is left begins at --offset 00000000000000000005"},
	} {
		n := newNode(t)
		n.create(t, "orders", "application/json")
		n.ask(t, http.MethodPost, "orders", "application/json", `{"n":1}`)
		var out, errOut syncbuf.Buffer
		done := make(chan int, 1)
		go func() {
			done <- run(t.Context(), environment(n.env, nil, &out, &errOut), []string{"stream", "tail", "acme/orders", "--offset", "-1"})
		}()
		eventually(t, "the message is told", func() bool { return out.String() != "" })
		n.SetFault(ursulatest.Status(status, http.Header{"Stream-Next-Offset": {"00000000000000000005"}}, []byte(`{"error":{"code":"`+tc.code+`","message":"No."}}`)))
		n.Restart()
		code := <-done
		want(t, code, out.String(), errOut.String(), exitFailed, "{\"n\":1}\n", "sluice: "+tc.code+": No; "+tc.says)
		if !strings.HasSuffix(errOut.String(), "\nTo go on: sluice stream tail acme/orders --offset 00000000000000000008\n") {
			t.Errorf("err %q", errOut.String())
		}
	}
}

// Ctrl-C ends a tail in order, and an append not.
func TestInterrupt(t *testing.T) {
	n := newNode(t)
	n.create(t, "orders", "application/json")
	for args, wantCode := range map[string]int{"tail": exitDone, "append": exitFailed} {
		var out, errOut syncbuf.Buffer
		done := make(chan int, 1)
		in, typing, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		before := n.cluster.Hits()
		go func() {
			done <- run(t.Context(), environment(n.env, in, &out, &errOut), []string{"stream", args, "acme/orders"})
		}()
		// The signal is caught before the first request.
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		if err := n.cluster.WaitHits(ctx, before+1); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if code := <-done; code != wantCode {
			t.Errorf("%s: exit %d, err %q", args, code, errOut.String())
		}
		_ = typing.Close()
		_ = in.Close()
	}
}
