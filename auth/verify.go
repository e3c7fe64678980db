package auth

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/golang-jwt/jwt/v5"

	"sluice/internal/tenant"
)

// byToken is the principal of a signed token. What was verified before is not
// verified again, but looked at: all that can end it in between.
func (a *Authenticator) byToken(ctx context.Context, token string) (*Principal, error) {
	if a.origin == "" && a.issuers == nil {
		return nil, ErrInvalidCredential
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	sum := tokenSum(token)
	if p := a.tokens.get(sum); p != nil {
		switch err := a.stands(ctx, p); {
		case err == nil:
			return p, nil
		case errors.Is(err, ErrUnavailable):
			return nil, err
		case !errors.Is(err, ErrTokenKey):
			a.tokens.remove(sum)
			return nil, err
		}
		// Its issuer may have given the same id to another key, or has it again.
		a.tokens.remove(sum)
	}
	p, err := a.verify(ctx, token)
	if err != nil {
		return nil, err
	}
	a.tokens.add(sum, p)
	return p, nil
}

// tokenSum is what a token is remembered by. Most fit the buffer, so that
// hashing them allocates nothing.
func tokenSum(token string) [sha256.Size]byte {
	var buffer [1 << 10]byte
	return sha256.Sum256(append(buffer[:0], token...))
}

// verify is the whole policy for a token that was not seen before. Everything
// that can be refused without a key is, before one is asked for.
func (a *Authenticator) verify(ctx context.Context, token string) (*Principal, error) {
	t, err := readCompact(token)
	if err != nil {
		return nil, err
	}
	c, err := readClaims(t.claims)
	if err != nil {
		return nil, err
	}
	if a.origin != "" && c.issuer == a.origin {
		return a.verifyOwn(ctx, t, c)
	}
	i := a.issuers.find(c.issuer)
	if i == nil {
		return nil, ErrTokenIssuer
	}
	return a.verifyOther(ctx, i, t, c)
}

// verifyOwn verifies a Streams token.
func (a *Authenticator) verifyOwn(ctx context.Context, t *compact, c *claims) (*Principal, error) {
	if t.header.method != jwt.SigningMethod(jwt.SigningMethodES256) {
		return nil, ErrTokenAlgorithm
	}
	if !slices.Contains(c.audience, a.origin) {
		return nil, ErrTokenAudience
	}
	p, err := ownPrincipal(c)
	if err != nil {
		return nil, err
	}
	if err := c.within(tenant.MaxTokenLife); err != nil {
		return nil, err
	}
	key, err := a.signingKey(ctx, t.header.kid)
	if err != nil {
		return nil, err
	}
	if err := a.checkSignature(ctx, t, &key.Private.PublicKey); err != nil {
		return nil, err
	}
	p.grounds.kid, p.grounds.key = t.header.kid, key.Private
	if err := c.begun(a.now()); err != nil {
		return nil, err
	}
	if err := a.stands(ctx, p); err != nil {
		return nil, err
	}
	return p, nil
}

// ownPrincipal is what a Streams token says, were it true.
func ownPrincipal(c *claims) (*Principal, error) {
	account, ok := readString(c.all.get("account"))
	if _, err := tenant.ParseAccountID(account); !ok || err != nil {
		return nil, badClaim("account")
	}
	streams, err := readStreams(c.all.get("streams"))
	if err != nil {
		return nil, err
	}
	p := c.principal(tenant.AccountID(account), streams)
	p.KeyID = c.clientID
	if raw := c.all.get("root"); raw != nil {
		p.grounds.root = &root{}
		if err := json.Unmarshal(raw, p.grounds.root); err != nil || p.grounds.root.Issuer == "" {
			return nil, badClaim("root")
		}
	}
	return p, nil
}

func (c *claims) principal(account tenant.AccountID, streams tenant.StreamSet) *Principal {
	return &Principal{
		Account: account, Access: accessOf(c.scopes), Streams: streams, ActsAs: tenant.User,
		ExpiresAt: c.expires, TokenID: c.id, Issuer: c.issuer, Subject: c.subject, Scopes: c.scopes,
		grounds: &grounds{issuedAt: c.issuedAt},
	}
}

// verifyOther verifies an access token of another issuer.
func (a *Authenticator) verifyOther(ctx context.Context, i *issuer, t *compact, c *claims) (*Principal, error) {
	p, err := i.principal(c)
	if err != nil {
		return nil, err
	}
	if err := c.within(maxOtherLife); err != nil {
		return nil, err
	}
	if err := c.begun(a.now()); err != nil {
		return nil, err
	}
	key := i.keys.find(t.header.kid, t.header.method)
	if key == nil {
		if !a.now().Before(c.expires) {
			return nil, ErrTokenKey // not worth a question to its issuer
		}
		if key, err = i.keys.await(ctx, t.header.kid, t.header.method, c.issuedAt); err != nil {
			return nil, err
		}
	}
	if err := a.checkSignature(ctx, t, key.public); err != nil {
		return nil, err
	}
	p.grounds.kid, p.grounds.key = t.header.kid, key
	if err := a.stands(ctx, p); err != nil {
		return nil, err
	}
	return p, nil
}

// principal is what another issuer's token says, were it true.
func (i *issuer) principal(c *claims) (*Principal, error) {
	if !slices.Contains(c.audience, i.Audience) {
		return nil, ErrTokenAudience
	}
	keyID := i.Issuer + "#" + c.clientID
	if !printable(c.clientID) || len(keyID) > maxClaim { // it is a child's "client_id"
		return nil, badClaim("client_id")
	}
	name, ok := readString(c.all.get(i.AccountClaim))
	if !ok {
		return nil, badClaim("account")
	}
	account := tenant.AccountID(name)
	if !slices.Contains(i.Accounts, account) {
		return nil, ErrTokenAccount
	}
	// A token that says which streams it is for means it, whoever made it.
	streams, err := readStreams(c.all.get("streams"))
	if err != nil {
		return nil, err
	}
	p := c.principal(account, streams)
	p.KeyID = keyID
	p.grounds.audience, p.grounds.accountClaim = c.audience, i.AccountClaim
	return p, nil
}

// checkSignature verifies a signature, which is the dearest step by far and the one
// that anybody can ask for. Half of the processors at most do so at one time, so
// that bad tokens leave the others to requests with known credentials.
func (a *Authenticator) checkSignature(ctx context.Context, t *compact, public any) error {
	select {
	case a.checks <- struct{}{}:
		defer func() { <-a.checks }()
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
	}
	if err := t.header.method.Verify(t.signed, t.signature, public); err != nil {
		return ErrTokenSignature
	}
	return nil
}
