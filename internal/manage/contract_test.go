package manage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"sluice/internal/refusal"
)

// contract holds answers against openapi.yaml.
type contract struct {
	doc    *openapi3.T
	router routers.Router

	mu   sync.Mutex
	seen map[string]bool // "operation status"
}

// theContract is read once: each answer of each test is held against it.
var theContract = sync.OnceValues(func() (*contract, error) {
	doc, err := openapi3.NewLoader().LoadFromData(Reference())
	if err != nil {
		return nil, err
	}
	if err := doc.Validate(context.Background()); err != nil {
		return nil, err
	}
	// Both listeners are one here.
	doc.Servers = nil
	for _, path := range doc.Paths.Map() {
		path.Servers = nil
	}
	router, err := gorillamux.NewRouter(doc)
	return &contract{doc: doc, router: router, seen: map[string]bool{}}, err
})

// check reports what an answer has against the document: a status that does not stand
// there, a body or a header that is not as it says. What no operation is, is 404 or 405.
func (c *contract) check(r *http.Request, got answered) error {
	asked := r.Clone(context.Background())
	asked.Body = http.NoBody
	if asked.Method == http.MethodHead {
		asked.Method = http.MethodGet
	}
	route, parameters, err := c.router.FindRoute(asked)
	if errors.Is(err, routers.ErrMethodNotAllowed) || errors.Is(err, routers.ErrPathNotFound) {
		if got.status != http.StatusNotFound && got.status != http.StatusMethodNotAllowed {
			return fmt.Errorf("%s %s is no operation, and is answered %d", r.Method, r.URL.Path, got.status)
		}
		return nil
	}
	if err != nil {
		return err
	}
	if got.refused() == "NOT_FOUND" {
		return nil // on the other listener
	}
	c.mu.Lock()
	c.seen[route.Operation.OperationID+" "+strconv.Itoa(got.status)] = true
	c.mu.Unlock()
	if r.Method == http.MethodHead {
		return nil
	}
	return openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: asked, PathParams: parameters, Route: route},
		Status:                 got.status, Header: got.header, Body: io.NopCloser(bytes.NewReader([]byte(got.body))),
		Options: &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true},
	})
}

// held is an answer that was held against the document.
func (g *rig) held(r *http.Request, got answered) answered {
	g.tb.Helper()
	c, err := theContract()
	if err != nil {
		g.tb.Fatalf("openapi.yaml: %v", err)
	}
	if err := c.check(r, got); err != nil {
		g.tb.Errorf("%s %s: the answer %d %s is not as openapi.yaml says: %v", r.Method, r.URL, got.status, got.body, err)
	}
	for name, want := range map[string]string{"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"} {
		if value := got.header.Get(name); value != want {
			g.tb.Errorf("%s %s: %s: %q, want %q", r.Method, r.URL, name, value, want)
		}
	}
	if id := got.header.Get(requestIDHeader); !refusal.WellFormedID(id) {
		g.tb.Errorf("%s %s: request id %q", r.Method, r.URL, id)
	}
	return got
}

// undocumented lists what the document has and no answer was.
func (c *contract) unseen() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	documented := map[string]bool{}
	for _, path := range c.doc.Paths.Map() {
		for _, op := range path.Operations() {
			for status := range op.Responses.Map() {
				documented[op.OperationID+" "+status] = true
			}
		}
	}
	maps.DeleteFunc(documented, func(k string, _ bool) bool { return c.seen[k] })
	return slices.Sorted(maps.Keys(documented))
}

// A document that allows anything would hold nothing.
func TestContractCanFail(t *testing.T) {
	g := newRig(t)
	c, err := theContract()
	if err != nil {
		t.Fatal(err)
	}
	r := g.request(g.key, http.MethodGet, "/v1/streams", "")
	good := g.send(g.owner, r)
	spoil := func(f func(*answered)) answered {
		bad := good
		bad.header = good.header.Clone()
		f(&bad)
		return bad
	}
	for name, bad := range map[string]answered{
		"another status":  spoil(func(a *answered) { a.status = http.StatusTeapot }),
		"another member":  spoil(func(a *answered) { a.body = `{"streams":[],"next_cursor":null,"more":1}` }),
		"a member less":   spoil(func(a *answered) { a.body = `{"streams":[]}` }),
		"no request id":   spoil(func(a *answered) { a.header.Del(requestIDHeader) }),
		"another type":    spoil(func(a *answered) { a.header.Set("Content-Type", "text/html") }),
		"a code of yore":  spoil(func(a *answered) { a.status, a.body = 401, `{"error":{"code":"UNAUTHORIZED","message":"x"}}` }),
		"no retry-after":  spoil(func(a *answered) { a.status, a.body = 503, `{"error":{"code":"STORE_UNAVAILABLE","message":"x"}}` }),
		"a cached answer": spoil(func(a *answered) { a.header.Set("Cache-Control", "public") }),
	} {
		if err := c.check(r, bad); err == nil {
			t.Errorf("%s: %d %s passes", name, bad.status, bad.body)
		}
	}
	if err := c.check(r, good); err != nil {
		t.Error(err)
	}
}
