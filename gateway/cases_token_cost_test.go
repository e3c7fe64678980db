package gateway

import (
	"bufio"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// H07, the rest of it: giant and strange tokens cost less than 10 ms each, and 500
// at one time leave no memory behind.
func TestGiantTokensCostNothing(t *testing.T) {
	rg, u := newUpRig(t, respond(whole("200 OK", "", "ok")), rigOptions{})
	tokens := map[string]struct {
		token  string
		status int
	}{
		"900 KiB":                 {strings.Repeat("a", 900<<10), 431},
		"500 000 dots":            {strings.Repeat(".", 500_000), 431},
		"20 KiB of dots":          {strings.Repeat(".", 20<<10), 401},
		"20 KiB of commas":        {strings.Repeat(",", 20<<10), 401},
		"20 KiB behind the tbo_":  {"tbo_" + strings.Repeat("a", 20<<10), 401},
		"%0a":                     {"tbo_%0ax", 401},
		"not ASCII, 8 KiB of it":  {strings.Repeat("\xc3\xbc", 4<<10), 401},
		"20 KiB of escaped quote": {strings.Repeat(`\"`, 10<<10), 401},
	}
	for name, tc := range tokens {
		request := rawGet("GET", "/acme/s.pub", "Authorization: Bearer "+tc.token)
		best(t, name, 10*time.Millisecond, func() time.Duration {
			start := time.Now()
			if status := rg.answerEarly(t, request); status != tc.status {
				t.Fatalf("%s: status %d, want %d", name, status, tc.status)
			}
			return time.Since(start)
		})
	}
	const many, spare = 500, 16 << 20
	before := heap()
	var wait sync.WaitGroup
	for range many / len(tokens) {
		for name, tc := range tokens {
			wait.Go(func() {
				if status := rg.answerEarly(t, rawGet("GET", "/acme/s.priv", "Authorization: Bearer "+tc.token)); status != tc.status {
					t.Errorf("%s, one of %d: status %d, want %d", name, many, status, tc.status)
				}
			})
		}
	}
	wait.Wait()
	if after := heap(); after > before+spare {
		t.Errorf("%d requests left %d bytes of memory", many, after-before)
	}
	u.untouched(t)
}

// answerEarly sends a request whose answer may come before all of it is sent, and
// returns the answer's status.
func (rg *rig) answerEarly(t *testing.T, request string) int {
	conn := rg.dial(t)
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = io.WriteString(conn, request)
	}()
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	_ = conn.Close()
	<-written
	if err != nil {
		t.Error(err)
		return 0
	}
	_ = res.Body.Close()
	return res.StatusCode
}

// heap is what is in use after a collection.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
