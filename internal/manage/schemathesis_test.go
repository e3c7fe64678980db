package manage

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"sluice/internal/realpart"
)

// schemathesis reads openapi.yaml and asks whatever that allows, and what it does not: no
// answer is a 5xx, and none is one that is not documented.
func TestSchemathesis(t *testing.T) {
	program := os.Getenv("SCHEMATHESIS")
	if program == "" {
		program = "schemathesis"
	}
	if _, err := exec.LookPath(program); err != nil {
		realpart.Missing(t, "schemathesis", "`make schemathesis`, or name it in SCHEMATHESIS")
	}
	examples := "10"
	if soak() {
		examples = "200"
	}
	for _, listener := range []string{"owner", "operator"} {
		t.Run(listener, func(t *testing.T) {
			// A key of the operator's file: the run would narrow or revoke any other.
			g := newRig(t)
			g.declare(t)
			api := g.owner
			if listener == "operator" {
				api = g.operator
			}
			var mu sync.Mutex
			seen := map[int]int{}
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				counted := &statusWriter{ResponseWriter: w}
				api.ServeHTTP(counted, r)
				mu.Lock()
				defer mu.Unlock()
				seen[counted.status]++
			}))
			t.Cleanup(server.Close)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "../../tools/schemathesis.sh", listener, server.URL)
			cmd.Env = append(os.Environ(), "TONBO_API_KEY="+g.keys["stated"], "SLUICE_ADMIN_TOKEN=", "SCHEMATHESIS="+program, "SCHEMATHESIS_EXAMPLES="+examples, "SCHEMATHESIS_SEED=1")
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			mu.Lock()
			defer mu.Unlock()
			t.Logf("answers by status: %v", seen)
			// A run that is refused at the door would pass too.
			for _, status := range []int{200, 201, 204, 400, 404, 409} {
				if seen[status] == 0 {
					t.Errorf("no answer was %d: little was asked", status)
				}
			}
		})
	}
}

// statusWriter remembers what an answer was.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}
