package auth

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"sluice/internal/tenant"
)

// Bounds of claims.
const (
	leeway       = 30 * time.Second // for "iat" and "nbf"; none for "exp" (design §5)
	maxClaim     = 512              // bytes of "sub", "client_id" and "jti"
	maxAudience  = 32               // entries of "aud"
	maxScopes    = 128              // different scopes
	maxDate      = 253402300799     // seconds: the last of year 9999
	maxOtherLife = 24 * time.Hour   // another issuer's token, "iat" to "exp"
)

// claims are those that every access token has (RFC 9068 §2.2), read and
// checked for form, not yet for truth.
type claims struct {
	issuer, subject, clientID, id string
	audience                      []string
	issuedAt, notBefore, expires  time.Time // whole seconds; notBefore may be zero
	scopes                        []string
	all                           object
}

func badClaim(name string) error { return fmt.Errorf("%w: %s", ErrTokenClaims, name) }

// readClaims checks the form of the claims. The errors are ErrTokenClaims, with
// the claim's name and nothing of its value.
func readClaims(all object) (*claims, error) {
	c := &claims{all: all}
	var err error
	for _, text := range []struct {
		name string
		into *string
	}{{"iss", &c.issuer}, {"sub", &c.subject}, {"client_id", &c.clientID}, {"jti", &c.id}} {
		if *text.into, err = c.text(text.name); err != nil {
			return nil, err
		}
	}
	if c.audience, err = readAudience(all.get("aud")); err != nil {
		return nil, err
	}
	if c.scopes, err = readScopes(all.get("scope")); err != nil {
		return nil, err
	}
	return c, c.readTimes()
}

// text is a required string that can stand in a line of the log.
func (c *claims) text(name string) (string, error) {
	s, ok := readString(c.all.get(name))
	if !ok || s == "" || len(s) > maxClaim || strings.ContainsFunc(s, unicode.IsControl) {
		return "", badClaim(name)
	}
	return s, nil
}

// readTimes reads the dates. A part of a second is cut off so that the token
// lives no longer by it: "exp" and "iat" down, "nbf" up.
func (c *claims) readTimes() error {
	expires, err := readDate(c.all, "exp")
	if err != nil {
		return err
	}
	issuedAt, err := readDate(c.all, "iat")
	if err != nil {
		return err
	}
	c.expires, c.issuedAt = second(math.Floor(expires)), second(math.Floor(issuedAt))
	if c.all.get("nbf") != nil {
		notBefore, err := readDate(c.all, "nbf")
		if err != nil {
			return err
		}
		c.notBefore = second(math.Ceil(notBefore))
	}
	return nil
}

func second(s float64) time.Time { return time.Unix(int64(s), 0) }

// readDate is a NumericDate (RFC 7519 §2): a JSON number of seconds, of which a
// part may be a fraction. What is no number, negative or beyond year 9999 is
// refused.
func readDate(all object, name string) (float64, error) {
	raw := all.get(name)
	if len(raw) == 0 || raw[0] < '0' || raw[0] > '9' {
		return 0, badClaim(name)
	}
	s, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || s > maxDate {
		return 0, badClaim(name)
	}
	return s, nil
}

// readAudience is a string or a list of strings (RFC 7519 §4.1.3), none empty.
func readAudience(raw json.RawMessage) ([]string, error) {
	if s, ok := readString(raw); ok && s != "" {
		return []string{s}, nil
	}
	list, ok := readStrings(raw)
	if !ok || len(list) == 0 || len(list) > maxAudience || slices.Contains(list, "") {
		return nil, badClaim("aud")
	}
	return list, nil
}

// readScopes splits a scope claim on spaces, each scope once (facts J6). It may
// be missing.
func readScopes(raw json.RawMessage) ([]string, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	text, ok := readString(raw)
	if !ok {
		return nil, badClaim("scope")
	}
	scopes := splitScopes(text)
	if len(scopes) > maxScopes {
		return nil, badClaim("scope")
	}
	return scopes, nil
}

func splitScopes(text string) []string {
	var scopes []string
	for s := range strings.SplitSeq(text, " ") {
		if s != "" && !slices.Contains(scopes, s) {
			scopes = append(scopes, s)
			if len(scopes) > maxScopes {
				break
			}
		}
	}
	return scopes
}

// readStreams is the list that a token is narrowed to; a missing claim is all of
// the account. An empty list reaches nothing and is refused, as everywhere.
func readStreams(raw json.RawMessage) (tenant.StreamSet, error) {
	if len(raw) == 0 {
		return tenant.AllStreams(), nil
	}
	list, ok := readStrings(raw)
	if !ok {
		return tenant.StreamSet{}, badClaim("streams")
	}
	set, err := tenant.ParseStreamSet(list)
	if err != nil {
		return tenant.StreamSet{}, badClaim("streams")
	}
	return set, nil
}

// within says whether the token's whole life is at most that long.
func (c *claims) within(life time.Duration) error {
	if !c.expires.After(c.issuedAt) || c.expires.Sub(c.issuedAt) > life {
		return badClaim("exp")
	}
	return nil
}

// begun says whether the token is valid already, with the leeway for clocks
// that differ.
func (c *claims) begun(now time.Time) error {
	latest := now.Add(leeway)
	if c.issuedAt.After(latest) || c.notBefore.After(latest) {
		return ErrTokenNotYet
	}
	return nil
}
