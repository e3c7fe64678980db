package auth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sluice/internal/tenant"
)

// maxIssuers bounds the list of other issuers.
const maxIssuers = 64

// ErrIssuerOptions says that the description of an issuer cannot be used.
var ErrIssuerOptions = errors.New("bad issuer")

// IssuerOptions describe an identity provider whose access tokens (RFC 9068)
// are taken besides our own (design §5).
type IssuerOptions struct {
	// Issuer is its identifier, compared exactly with "iss": an https URL without
	// query and fragment; http on loopback, for trials.
	Issuer string
	// Audience is what a token's "aud" must hold: how the issuer calls us.
	Audience string
	// JWKSURL is where its keys are; "" = found by its metadata (RFC 8414, else
	// OpenID Connect Discovery).
	JWKSURL string
	// AccountClaim is the top-level claim, a string, that names the account.
	AccountClaim string
	// Accounts are those that this issuer may name. None is an error.
	Accounts []tenant.AccountID
}

// Check says what is wrong with the description; it asks nobody. The error wraps
// ErrIssuerOptions.
func (o IssuerOptions) Check() error {
	if err := checkIssuerURL(o.Issuer); err != nil {
		return err
	}
	if o.JWKSURL != "" {
		if _, err := secureURL(o.JWKSURL); err != nil {
			return err
		}
	}
	switch {
	case o.Audience == "":
		return fmt.Errorf("%w: its audience is missing: the \"aud\" that its tokens have for this gateway", ErrIssuerOptions)
	case o.AccountClaim == "":
		return fmt.Errorf("%w: account_claim is missing: the claim that names the account", ErrIssuerOptions)
	case len(o.Accounts) == 0:
		return fmt.Errorf("%w: accounts is empty: list the accounts that it may name", ErrIssuerOptions)
	}
	for _, id := range o.Accounts {
		if _, err := tenant.ParseAccountID(string(id)); err != nil {
			return fmt.Errorf("%w: accounts: %w", ErrIssuerOptions, err)
		}
	}
	return nil
}

// checkIssuerURL is RFC 8414 §2: no query, no fragment. KeyID relies on that.
func checkIssuerURL(text string) error {
	u, err := secureURL(text)
	if err != nil {
		return err
	}
	if u.RawQuery != "" || u.ForceQuery || u.RawPath != "" {
		return fmt.Errorf("%w: an issuer's URL has no query and nothing encoded", ErrIssuerOptions)
	}
	return nil
}

// secureURL is an absolute https URL; http goes to this machine only.
func secureURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" || !printable(text) {
		return nil, fmt.Errorf("%w: not an absolute URL without a user and a fragment", ErrIssuerOptions)
	}
	if u.Scheme != "https" && (u.Scheme != "http" || !loopback(u.Hostname())) {
		return nil, fmt.Errorf("%w: its URL is https; http is for loopback only", ErrIssuerOptions)
	}
	return u, nil
}

func loopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.Unmap().IsLoopback()
}

// IssuersOptions are what Issuers need.
type IssuersOptions struct {
	Origin    string            // our own; no other issuer may have it
	Transport http.RoundTripper // nil = one without proxies, with TLS's usual roots
	Now       func() time.Time  // nil = time.Now

	// Changed is told, where not nil, that credentials of that issuer may have
	// ended: a key of it is gone, or its description changed. Like a
	// tenant.Directory's callback it must not block.
	Changed func(issuer string)
	// Failed is told, where not nil, of each fetch of keys that failed, and with
	// nil of the first one that worked again. The error is for the log.
	Failed func(issuer string, err error)
}

// Issuers are the other issuers and what is known of their keys. There is one
// for the life of the process; it outlives reloads, and the keys with it. All
// methods are safe for concurrent use, those that look up on a nil value too.
type Issuers struct {
	o       IssuersOptions
	ctx     context.Context // of every fetch; ends with Close
	end     context.CancelFunc
	setting sync.Mutex
	current atomic.Pointer[map[string]*issuer]
}

// issuer is one of them.
type issuer struct {
	IssuerOptions
	keys *remoteKeys
}

// NewIssuers makes an empty list. Its owner ends it with Close.
func NewIssuers(o IssuersOptions) *Issuers {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Transport == nil {
		o.Transport = newIssuerTransport()
	}
	i := &Issuers{o: o}
	i.ctx, i.end = context.WithCancel(context.Background())
	i.current.Store(&map[string]*issuer{})
	return i
}

// Set puts list in the place of all issuers, and starts to fetch the keys of new
// ones; the keys of those whose URLs stay are kept. On an error, which wraps
// ErrIssuerOptions, the old list stays. It is not to be called after Close.
func (i *Issuers) Set(list []IssuerOptions) error {
	if err := i.check(list); err != nil {
		return err
	}
	i.setting.Lock()
	defer i.setting.Unlock()
	old := *i.current.Load()
	next := make(map[string]*issuer, len(list))
	for _, o := range list {
		o.Accounts = slices.Clone(o.Accounts)
		if was := old[o.Issuer]; was != nil && was.JWKSURL == o.JWKSURL {
			next[o.Issuer] = &issuer{o, was.keys}
		} else {
			next[o.Issuer] = &issuer{o, newRemoteKeys(i.ctx, &i.o, o)}
		}
	}
	i.current.Store(&next)
	for name, was := range old {
		is := next[name]
		if is == nil || is.keys != was.keys {
			was.keys.close()
		}
		if is == nil || !is.allows(was) {
			i.o.changed(name)
		}
	}
	return nil
}

func (i *Issuers) check(list []IssuerOptions) error {
	if len(list) > maxIssuers {
		return fmt.Errorf("%w: more than %d issuers", ErrIssuerOptions, maxIssuers)
	}
	seen := make(map[string]bool, len(list))
	for n, o := range list {
		if err := o.Check(); err != nil {
			return fmt.Errorf("issuer %d: %w", n+1, err)
		}
		if o.Issuer == i.o.Origin {
			return fmt.Errorf("issuer %d: %w: it is this gateway's own origin", n+1, ErrIssuerOptions)
		}
		if seen[o.Issuer] {
			return fmt.Errorf("issuer %d: %w: it stands twice", n+1, ErrIssuerOptions)
		}
		seen[o.Issuer] = true
	}
	return nil
}

// allows reports whether all that was allowed still is.
func (i *issuer) allows(was *issuer) bool {
	missing := func(id tenant.AccountID) bool { return !slices.Contains(i.Accounts, id) }
	return i.keys == was.keys && i.Audience == was.Audience && i.AccountClaim == was.AccountClaim &&
		!slices.ContainsFunc(was.Accounts, missing)
}

// Close ends all fetches and waits for them. What is known stays.
func (i *Issuers) Close() {
	i.setting.Lock()
	defer i.setting.Unlock()
	i.end()
	for _, is := range *i.current.Load() {
		is.keys.close()
	}
}

func (o *IssuersOptions) changed(name string) {
	if o.Changed != nil {
		o.Changed(name)
	}
}

func (o *IssuersOptions) failed(name string, err error) {
	if o.Failed != nil {
		o.Failed(name, err)
	}
}

// find is the issuer of that identifier, or nil.
func (i *Issuers) find(name string) *issuer {
	if i == nil {
		return nil
	}
	return (*i.current.Load())[name]
}

// stands says whether another issuer's token would be taken again, as far as
// that does not need its text.
func (i *Issuers) stands(p *Principal) error {
	is := i.find(p.Issuer)
	switch {
	case is == nil:
		return ErrTokenIssuer
	case !slices.Contains(p.grounds.audience, is.Audience):
		return ErrTokenAudience
	case p.grounds.accountClaim != is.AccountClaim || !slices.Contains(is.Accounts, p.Account):
		return ErrTokenAccount
	case !is.keys.has(p.grounds.key):
		return ErrTokenKey
	}
	return nil
}

// rootStands says the same of the token that began a chain of exchanges. Where
// the issuer's keys were never had since the start, that cannot be told.
func (i *Issuers) rootStands(r *root, account tenant.AccountID) error {
	is := i.find(r.Issuer)
	switch {
	case is == nil:
		return ErrTokenIssuer
	case !slices.Contains(is.Accounts, account):
		return ErrTokenAccount
	}
	return is.keys.hasID(r.KeyID)
}

// IssuerStats is what is known of an issuer's keys, for metrics.
type IssuerStats struct {
	Issuer  string
	Keys    int       // 0: its tokens cannot be verified
	AskedAt time.Time // when the keys in use were asked for; zero = never had
	Failing bool      // the last fetch failed; the last good keys serve
}

// Stats tells of each issuer, in no order. How long the last good keys have
// served is now minus AskedAt; they serve without end.
func (i *Issuers) Stats() []IssuerStats {
	issuers := *i.current.Load()
	list := make([]IssuerStats, 0, len(issuers))
	for name, is := range issuers {
		s := is.keys.stats()
		s.Issuer = name
		list = append(list, s)
	}
	return list
}
