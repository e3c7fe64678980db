package apiclient

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"sluice/internal/bubble"
)

// A read is whole, wherever a connection breaks.
func TestReadCutAtEachByte(t *testing.T) {
	for n := 0; ; n++ {
		whole := false
		bubble.Test(t, func(t *testing.T) {
			r := newRig(t, "application/json")
			for _, m := range []string{`{"n":1}`, `{"n":2}`, `{"n":3}`} {
				r.node(t, http.MethodPost, m, "application/json")
			}
			r.cuts = []cut{{-1, n}, {n, -1}}
			var got bytes.Buffer
			so, err := r.Read(t.Context(), ReadOptions{Stream: r.stream, Offset: "-1"}, &got)
			if err != nil || got.String() != threeStored || so.Bytes != int64(len(threeStored)) || so.Next != "00000000000000000024" {
				t.Fatalf("cut after %d: %q, %+v, %v", n, got.String(), so, err)
			}
			whole = r.dials == 1
		})
		if whole || t.Failed() {
			if n < 300 {
				t.Errorf("only %d bytes came", n)
			}
			return
		}
	}
}

// A large stream comes in several answers, each of which may break; compressed ones
// as well.
func TestReadLarge(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same sizes each time
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "application/json")
		var want strings.Builder
		for want.Len() < 4<<20 {
			message := `{"text":"` + strings.Repeat("x", random.IntN(60000)) + `"}`
			r.node(t, http.MethodPost, message, "application/json")
			want.WriteString(message + "\n")
		}
		for range 40 {
			r.cuts = append(r.cuts, cut{-1, random.IntN(20000)})
		}
		var got bytes.Buffer
		calls := 0
		so, err := r.Read(t.Context(), ReadOptions{Stream: r.stream, Offset: "-1", Progress: func(so ReadSoFar) {
			calls++
			if so.Bytes != int64(got.Len()) {
				t.Errorf("told of %d bytes, wrote %d", so.Bytes, got.Len())
			}
		}}, &got)
		if err != nil || got.String() != want.String() || calls < 4 || so.ContentType != "application/x-ndjson" {
			t.Errorf("%d of %d bytes, %d answers, %+v, %v", got.Len(), want.Len(), calls, so, err)
		}
		// From an offset on.
		got.Reset()
		if _, err := r.Read(t.Context(), ReadOptions{Stream: r.stream, Offset: so.Next}, &got); err != nil || got.Len() > 0 {
			t.Errorf("from the end: %d bytes, %v", got.Len(), err)
		}
	})
}

func TestReadRefused(t *testing.T) {
	for _, status := range []int{400, 401, 402, 403, 404, 410, 416} {
		bubble.Test(t, func(t *testing.T) {
			r := newRig(t, "application/json")
			r.front = refusing(1, http.MethodGet, status, "NO", hNextOffset, "00000000000000000009")
			_, err := r.Read(t.Context(), ReadOptions{Stream: r.stream, Offset: "-1"}, io.Discard)
			var e *Error
			if !errors.As(err, &e) || e.Status != status || (e.Resume != "") != (status == 410) {
				t.Errorf("status %d: %+v", status, err)
			}
		})
	}
}

// Half of one stream and half of another is no read.
func TestReadOfARecreatedStream(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "application/octet-stream")
		for range 3 {
			r.node(t, http.MethodPost, strings.Repeat("a", 1<<20), "application/octet-stream")
		}
		so, err := r.Read(t.Context(), ReadOptions{Stream: r.stream, Offset: "-1", Progress: func(so ReadSoFar) {
			if so.Bytes != 1<<20 {
				return
			}
			r.node(t, http.MethodDelete, "", "")
			r.make(t, "application/octet-stream")
			r.node(t, http.MethodPost, strings.Repeat("b", 3<<20), "application/octet-stream")
		}}, io.Discard)
		var e *Error
		if !errors.As(err, &e) || e.Code != "INCARNATION_MISMATCH" || so.Bytes != 1<<20 {
			t.Errorf("%+v, %v", so, err)
		}
	})
}

// Nobody there is told after half a minute, not after five.
func TestReadWithNobodyThere(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "application/json")
		r.down = true
		began := time.Now()
		_, err := r.Read(t.Context(), ReadOptions{Stream: r.stream, Offset: "-1"}, io.Discard)
		var gave *GaveUpError
		if took := time.Since(began); !errors.As(err, &gave) || took > ContactPatience {
			t.Errorf("%v after %v", err, took)
		}
		if !strings.Contains(err.Error(), "http://gateway.test cannot be asked: dial tcp: connection refused") {
			t.Errorf("says %q", err)
		}
	})
}

// A follower that cannot tell the end is asked again, not believed.
func TestReadUntilUpToDate(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "application/json")
		r.node(t, http.MethodPost, `{"n":1}`, "application/json")
		gets := 0
		r.front = func(w http.ResponseWriter, req *http.Request, node http.Handler) {
			if gets++; gets < 4 {
				w = unsure{w}
			}
			node.ServeHTTP(w, req)
		}
		var got bytes.Buffer
		if _, err := r.Read(t.Context(), ReadOptions{Stream: r.stream, Offset: "-1"}, &got); err != nil || got.String() != `{"n":1}`+"\n" || gets != 4 {
			t.Errorf("%q after %d reads, %v", got.String(), gets, err)
		}
	})
}

// unsure does not say that it is up to date.
type unsure struct{ http.ResponseWriter }

func (u unsure) WriteHeader(code int) {
	u.Header().Del(hUpToDate)
	u.ResponseWriter.WriteHeader(code)
}
