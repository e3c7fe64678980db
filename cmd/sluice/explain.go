package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"sluice/auth"
	"sluice/config"
	"sluice/gateway"
	"sluice/internal/store/memory"
	"sluice/internal/telemetry"
	"sluice/ratelimit"
)

// explainByFile says what a gateway with the operator's file at path would make of a request
// (question and answer as JSON), with nothing used of any limit. Nobody is asked: of a store
// only what the file declares is known. The keys of other issuers are fetched where the
// credential is a token.
func explainByFile(ctx context.Context, path string, question []byte, env environment) ([]byte, error) {
	c, err := loadConfig(path, env)
	if err != nil {
		return nil, explain(env, err)
	}
	var q gateway.Question
	if err := json.Unmarshal(question, &q); err != nil {
		return nil, err
	}
	a, err := newUnserved(c, hasToken(q)) //nolint:contextcheck // what it begins ends with Close
	if err != nil {
		return nil, err
	}
	defer a.Close() //nolint:contextcheck // however the question ended
	e, err := a.gateway.Load().Explain(ctx, q)
	if err != nil {
		return nil, err
	}
	e.Notes = append(e.Notes, unknownToFile(c, hasToken(q))...)
	return json.Marshal(e)
}

// hasToken reports whether the credential is a token and no key.
func hasToken(q gateway.Question) bool {
	for _, line := range q.Headers {
		if name, value, _ := strings.Cut(line, ":"); strings.EqualFold(name, "Authorization") && strings.Count(value, ".") == 2 {
			return true
		}
	}
	return false
}

// newUnserved is an App that decides and serves nothing: no listener, no node, no store.
func newUnserved(c *config.Config, tokens bool) (*App, error) {
	content, err := declared(c)
	if err != nil {
		return nil, err
	}
	a := &App{
		log: zap.NewNop(), started: c, config: c, now: time.Now, random: rand.Reader, registry: prometheus.NewRegistry(),
		limits: ratelimit.NewMemory(ratelimit.MemoryOptions{}), budget: gateway.NewBodyBudget(int64(c.Limits.BodyBudget)),
	}
	if a.metrics, err = telemetry.NewMetrics(a.registry); err != nil {
		return nil, err
	}
	if a.declared, err = memory.Open(memory.Options{Content: content, Now: time.Now, Random: rand.Reader}); err != nil {
		return nil, err
	}
	a.directory = a.declared
	a.identities(c, nil)
	if tokens {
		if err := a.issuers.Set(issuersOf(c)); err != nil {
			a.Close()
			return nil, err
		}
	}
	o := a.chainOptions(c)
	if c.Store.Configured() {
		o.Management = unseenManagement{}
		if c.Streams.Lifecycle == config.Protocol {
			o.Lifecycle = unseen{}
		}
	}
	a.gateway.Store(gateway.New(o))
	return a, nil
}

// unseen is what only a store could tell: of which all is taken to be good.
type unseen struct{}

// Look implements gateway.Lifecycle.
func (unseen) Look(context.Context, gateway.StreamChange) error { return nil }

// Begin implements gateway.Lifecycle.
func (unseen) Begin(context.Context, gateway.StreamChange) (gateway.Attempt, error) {
	return nil, errOnlyLooked
}

var errOnlyLooked = errors.New("nothing is served here")

var _ gateway.Lifecycle = unseen{}

// unseenManagement is the Management API of a store that is not asked.
type unseenManagement struct{}

// Look implements gateway.Management.
func (unseenManagement) Look(*http.Request) (*auth.Principal, error) { return nil, nil } //nolint:nilnil // nobody that is known

// Serve implements gateway.Management.
func (unseenManagement) Serve(http.ResponseWriter, *http.Request, netip.Addr) (*auth.Principal, error) {
	return nil, errOnlyLooked
}

var _ gateway.Management = unseenManagement{}

// unknownToFile says what the running gateway knows and the file does not.
func unknownToFile(c *config.Config, token bool) []string {
	const ask = "; leave --config out to ask the running gateway (SLUICE_ADMIN_URL)"
	notes := []string{"decided by the file alone, with nothing used of any limit" + ask}
	switch {
	case c.Store.Configured():
		notes = append(notes, "the store was not asked: of its accounts, streams, keys and tokens only what the file declares is known here, and all others are refused as unknown")
	case token && len(c.Auth.SigningKeys) == 0:
		notes = append(notes, "auth.signing_keys is empty: tokens of the gateway's own are signed with a key that only its process knows, and are refused here")
	}
	return notes
}
