package cli

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"sluice/internal/apiclient"
	"sluice/internal/secret"
	"sluice/internal/tenant"
)

// dataPath is where a stream's data is, and the client that goes there.
type dataPath struct {
	*apiclient.Client
	url string
}

// data finds a stream. NAME is a stream of the key's account, of which the Management
// API knows the URL; ACCOUNT/NAME and a stream's URL say it themselves, which a key
// needs that is narrowed or reads only, and a reader of a public stream who has none.
func (c *connection) data(ctx context.Context, env Environment, name string, anonymous bool) (dataPath, error) {
	whole := strings.Contains(name, "://")
	if whole && c.url == "" {
		if _, ok := env.Lookup("SLUICE_URL"); !ok {
			return c.dataAt(env, name, anonymous)
		}
	}
	origin, err := c.origin(env)
	if err != nil {
		return dataPath{}, err
	}
	if whole || strings.Contains(name, "/") {
		address, err := streamResource(origin, name)
		if err != nil {
			return dataPath{}, usagef("NAME %q: %w", name, err)
		}
		if !strings.HasPrefix(address, origin+"/") {
			return dataPath{}, usagef("NAME %q is at another gateway than %s says, and the key goes to that one only", name, c.place())
		}
		return c.dataAt(env, address, anonymous)
	}
	path, err := streamPath("/v1", name)
	if err != nil {
		return dataPath{}, err
	}
	client, err := c.owner(env)
	if err != nil {
		if anonymous {
			return dataPath{}, usagef("%w; a public stream is read without one, named ACCOUNT/NAME", err)
		}
		return dataPath{}, err
	}
	answer, err := client.Do(ctx, apiclient.Call{Method: http.MethodGet, Path: path})
	client.Close()
	if err != nil {
		return dataPath{}, c.explain(err)
	}
	var s streamShape
	if err := json.Unmarshal(answer, &s); err != nil || !s.is(name) {
		return dataPath{}, c.explain(client.Strange("its answer is not about the stream " + name + ": it tells no URL of it"))
	}
	return c.dataAt(env, s.URL, anonymous)
}

// dataAt is the client of a stream's URL, which is held to the same rules as the
// gateway's origin: the key goes there.
func (c *connection) dataAt(env Environment, address string, anonymous bool) (dataPath, error) {
	u, err := url.Parse(address)
	if err != nil || u.RawQuery != "" || u.Fragment != "" || u.RawPath != "" {
		return dataPath{}, usagef("%q is no stream's URL", address)
	}
	account, name, _ := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/"+tenant.StreamPrefix)
	if _, err := tenant.ParseAccountID(account); err != nil {
		return dataPath{}, usagef("%q is no stream's URL: %w", address, err)
	}
	if _, err := tenant.ParseStreamName(name); err != nil {
		return dataPath{}, usagef("%q is no stream's URL: %w", address, err)
	}
	u.Path = ""
	origin, err := gatewayOrigin(u.String(), c.plainHTTP)
	if err != nil {
		return dataPath{}, usagef("the stream's URL %w", err)
	}
	key, err := readKey(env.Lookup, c.keyFile)
	if _, set := env.Lookup("TONBO_API_KEY"); err != nil && anonymous && !set && c.keyFile == "" {
		key, err = secret.Secret{}, nil
	}
	if err != nil {
		return dataPath{}, UsageError{Err: err}
	}
	return dataPath{newClient(env, origin, key), origin + tenant.StreamPath(tenant.AccountID(account), tenant.StreamName(name))}, nil
}
