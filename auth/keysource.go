package auth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Bounds of what an issuer answers.
const (
	maxDocument  = 1 << 20 // bytes of a key set or of metadata, unpacked
	maxHeaders   = 32 << 10
	dialTimeout  = 5 * time.Second
	discoverLife = time.Hour // how long a discovered URL is used
)

var (
	errStatus   = errors.New("the answer's status is not 200")
	errTooLarge = errors.New("the answer is larger than 1 MiB")
	errRedirect = errors.New("a redirect is not followed: set the URL that it leads to")
	errMetadata = errors.New("bad metadata")
)

// newIssuerTransport goes out directly, whatever the environment names as a
// proxy, and keeps one idle connection.
func newIssuerTransport() http.RoundTripper {
	return &http.Transport{
		DialContext:            (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSHandshakeTimeout:    dialTimeout,
		ResponseHeaderTimeout:  fetchTimeout,
		MaxResponseHeaderBytes: maxHeaders,
		MaxIdleConns:           maxIssuers,
		MaxIdleConnsPerHost:    1,
		IdleConnTimeout:        90 * time.Second,
		ForceAttemptHTTP2:      true,
	}
}

// keySource fetches an issuer's keys. It is used by one goroutine.
type keySource struct {
	client  *http.Client
	now     func() time.Time
	issuer  string
	given   string // "" = to be discovered
	found   string
	foundAt time.Time
}

func newKeySource(o *IssuersOptions, i IssuerOptions) *keySource {
	refuse := func(*http.Request, []*http.Request) error { return errRedirect }
	return &keySource{
		client: &http.Client{Transport: o.Transport, CheckRedirect: refuse},
		now:    o.Now, issuer: i.Issuer, given: i.JWKSURL,
	}
}

// fetch gets the issuer's keys; ctx bounds it. A set without a usable key is an
// error. What fails makes the next fetch discover anew.
func (s *keySource) fetch(ctx context.Context) ([]*verifyKey, error) {
	at := s.given
	if at == "" {
		var err error
		if at, err = s.discover(ctx); err != nil {
			return nil, err
		}
	}
	text, err := s.get(ctx, at)
	var keys []*verifyKey
	if err == nil {
		keys, err = readKeySet(text)
	}
	if err != nil {
		s.found = ""
		return nil, fmt.Errorf("keys of issuer %s: %w", s.issuer, err)
	}
	return keys, nil
}

// discover finds the key set's URL in the issuer's metadata.
func (s *keySource) discover(ctx context.Context) (string, error) {
	if s.found != "" && s.now().Before(s.foundAt.Add(discoverLife)) {
		return s.found, nil
	}
	var errs []error
	for _, at := range metadataURLs(s.issuer) {
		found, err := s.metadata(ctx, at)
		if err == nil {
			s.found, s.foundAt = found, s.now()
			return found, nil
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("metadata of issuer %s: %w", s.issuer, errors.Join(errs...))
}

// metadataURLs are the places of an issuer's metadata: RFC 8414 §3.1 puts the
// well-known part before the issuer's path, OpenID Connect Discovery §4 behind.
func metadataURLs(issuer string) []string {
	u, err := url.Parse(issuer)
	if err != nil {
		return nil // checked by IssuerOptions.Check
	}
	path := strings.TrimRight(u.Path, "/")
	at := func(path string) string {
		v := *u
		v.Path = path
		return v.String()
	}
	return []string{
		at("/.well-known/oauth-authorization-server" + path),
		at(path + "/.well-known/openid-configuration"),
	}
}

func (s *keySource) metadata(ctx context.Context, at string) (string, error) {
	text, err := s.get(ctx, at)
	if err != nil {
		return "", err
	}
	var m struct {
		Issuer  string `json:"issuer"`
		JWKSURI string `json:"jwks_uri"`
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return "", fmt.Errorf("%w: not a JSON object", errMetadata)
	}
	if m.Issuer != s.issuer { // RFC 8414 §3.3: else one issuer could speak for another
		return "", fmt.Errorf("%w: it is another issuer's", errMetadata)
	}
	if _, err := secureURL(m.JWKSURI); err != nil {
		return "", fmt.Errorf("%w: jwks_uri: %w", errMetadata, err)
	}
	return m.JWKSURI, nil
}

// get reads one document whole, within its bounds.
func (s *keySource) get(ctx context.Context, at string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, fmt.Errorf("get: %w", err)
	}
	req.Header.Set("Accept", "application/json")
	res, err := s.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("get: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("get: %w: %d", errStatus, res.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, maxDocument+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("get: %w", err)
	case len(text) > maxDocument:
		return nil, fmt.Errorf("get: %w", errTooLarge)
	}
	return text, nil
}
