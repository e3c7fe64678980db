package cache

import (
	"fmt"
	"net/http"
	"testing"
)

// K03: errors and empty answers were stored on immutable paths; K04: HEAD and
// 304 had another rule than GET and 200; K05: a 416 was stored; K08: answers
// with a credential were stored for others. The whole table is tried: design §7
// allows exactly the six rows written out here, and every other row is no-store.
func TestControlTruthTable(t *testing.T) {
	storable := map[Answer]bool{
		{Method: "GET", Status: 200, Immutable: true, Marked: true, Public: true, Credential: false}:  true,
		{Method: "GET", Status: 206, Immutable: true, Marked: true, Public: true, Credential: false}:  true,
		{Method: "GET", Status: 304, Immutable: true, Marked: true, Public: true, Credential: false}:  true,
		{Method: "HEAD", Status: 200, Immutable: true, Marked: true, Public: true, Credential: false}: true,
		{Method: "HEAD", Status: 206, Immutable: true, Marked: true, Public: true, Credential: false}: true,
		{Method: "HEAD", Status: 304, Immutable: true, Marked: true, Public: true, Credential: false}: true,
	}
	methods := []string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "get", ""}
	statuses := []int{0, 100, 200, 201, 202, 204, 206, 301, 304, 307, 400, 401, 402, 403, 404, 405, 408, 410, 412, 413, 416, 429, 500, 502, 503, 504}
	rows, public := 0, 0
	for _, method := range methods {
		for _, status := range statuses {
			for bits := range 16 {
				a := Answer{
					Method: method, Status: status,
					Immutable: bits&1 != 0, Marked: bits&2 != 0, Public: bits&4 != 0, Credential: bits&8 != 0,
				}
				want := "no-store"
				if storable[a] {
					want = "public, max-age=300, immutable"
					public++
				}
				rows++
				if got := Control(a); got != want {
					t.Errorf("Control(%+v) = %q, want %q", a, got, want)
				}
			}
		}
	}
	if rows != len(methods)*len(statuses)*16 || public != len(storable) {
		t.Errorf("tried %d rows with %d storable ones; want %d and %d", rows, public, len(methods)*len(statuses)*16, len(storable))
	}
}

// K03, the other way about: taking any one condition away from a storable
// answer closes it.
func TestControlNeedsEveryCondition(t *testing.T) {
	good := Answer{Method: http.MethodGet, Status: http.StatusOK, Immutable: true, Marked: true, Public: true}
	if got := Control(good); got != Public {
		t.Fatalf("Control(%+v) = %q, want %q", good, got, Public)
	}
	for _, tc := range []struct {
		name string
		take func(*Answer)
	}{
		{"another method", func(a *Answer) { a.Method = http.MethodPost }},
		{"an empty answer", func(a *Answer) { a.Status = http.StatusNoContent }},
		{"an ordinary route", func(a *Answer) { a.Immutable = false }},
		{"no mark", func(a *Answer) { a.Marked = false }},
		{"a private stream", func(a *Answer) { a.Public = false }},
		{"a credential", func(a *Answer) { a.Credential = true }},
		{"nothing known", func(a *Answer) { *a = Answer{} }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := good
			tc.take(&a)
			if got := Control(a); got != NoStore {
				t.Errorf("Control(%+v) = %q, want %q", a, got, NoStore)
			}
		})
	}
}

func TestControlDoesNotAllocate(t *testing.T) {
	a := Answer{Method: http.MethodGet, Status: http.StatusOK, Immutable: true, Marked: true, Public: true}
	if n := testing.AllocsPerRun(100, func() { _ = Control(a) }); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

func ExampleControl() {
	chunk := Answer{Method: http.MethodGet, Status: http.StatusOK, Immutable: true, Marked: true, Public: true}
	fmt.Println(Control(chunk))
	chunk.Credential = true
	fmt.Println(Control(chunk))
	// Output:
	// public, max-age=300, immutable
	// no-store
}
