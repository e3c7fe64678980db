package gateway

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"sluice/auth"
	"sluice/internal/store/memory"
	"sluice/internal/tenant"
)

// exchangeForm are the parameters of an exchange: good ones, and over them what is
// given in pairs. "resource" and "audience" add up; an empty value leaves out.
func exchangeForm(subject string, pairs ...string) url.Values {
	form := url.Values{
		"grant_type": {auth.GrantTokenExchange}, "subject_token": {subject}, "subject_token_type": {auth.TypeAccessToken},
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		switch name, value := pairs[i], pairs[i+1]; {
		case name == "resource" || name == "audience":
			form.Add(name, value)
		case value == "":
			form.Del(name)
		default:
			form.Set(name, value)
		}
	}
	return form
}

const formType = "application/x-www-form-urlencoded"

// exchange asks for a token as an OAuth client does.
func (rg *rig) exchange(t testing.TB, form url.Values, headers ...string) answer {
	t.Helper()
	headers = append([]string{"Content-Type", formType}, headers...)
	return send(t, http.MethodPost, rg.URL+TokenPath, "", strings.NewReader(form.Encode()), headers...)
}

// exchanged is the body of an exchange that was made.
type exchanged struct {
	Token     string `json:"access_token"`
	Issued    string `json:"issued_token_type"`
	Type      string `json:"token_type"`
	ExpiresIn int    `json:"expires_in"`
	Scope     string `json:"scope"`
}

func (a answer) exchanged(t testing.TB) exchanged {
	t.Helper()
	var e exchanged
	if err := json.Unmarshal([]byte(a.Text), &e); err != nil || a.StatusCode != http.StatusOK || e.Token == "" {
		t.Fatalf("exchange: %d %s %v", a.StatusCode, a.Text, err)
	}
	return e
}

// oauth is an error in OAuth's shape; empty where the body has another.
func (a answer) oauth() (code, description string) {
	var body struct {
		Error       string `json:"error"`
		Description string `json:"error_description"`
	}
	if err := json.Unmarshal([]byte(a.Text), &body); err != nil {
		return "", ""
	}
	return body.Error, body.Description
}

// token exchanges the key of that name, or a token that was put among the keys.
func (rg *rig) token(t testing.TB, keyName string, pairs ...string) string {
	t.Helper()
	return rg.exchange(t, exchangeForm(rg.Keys[keyName], pairs...)).exchanged(t).Token
}

// addKey puts one more key of acme among those of the directory, under its name.
func (rg *rig) addKey(t testing.TB, name string, edit func(*tenant.Key)) string {
	t.Helper()
	text := newKey(t)
	k := tenant.Key{
		ID: "acme/" + name, Account: "acme", Name: name, Digest: tenant.DigestOf(text),
		Access: tenant.WriteAccess, Streams: tenant.AllStreams(), ActsAs: tenant.User,
	}
	if edit != nil {
		edit(&k)
	}
	rg.Keys[name] = text
	rg.replace(t, func(c *memory.Content) { c.Keys = append(c.Keys, k) })
	return text
}

// replace puts the content, changed, in the directory, as a reload does.
func (rg *rig) replace(t testing.TB, edit func(*memory.Content)) {
	t.Helper()
	next := memory.Content{
		Accounts: append([]tenant.Account(nil), rg.Content.Accounts...),
		Streams:  append([]tenant.Stream(nil), rg.Content.Streams...),
		Keys:     append([]tenant.Key(nil), rg.Content.Keys...), SigningKeys: append([]tenant.SigningKey(nil), rg.Content.SigningKeys...),
	}
	edit(&next)
	if err := rg.Directory.Replace(next); err != nil {
		t.Fatal(err)
	}
	rg.Content = next
}

// mint signs a token of our own with the key that signs now, good but for what the
// pairs say: claims that no exchange would give.
func (rg *rig) mint(t testing.TB, pairs ...any) string {
	t.Helper()
	keys, err := rg.Directory.SigningKeys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	signer, ok := tenant.Signer(keys, time.Now())
	if !ok {
		t.Fatal("no key signs")
	}
	claims := jwt.MapClaims{
		"iss": rigOrigin, "aud": rigOrigin, "sub": "acme/full", "client_id": "acme/full", "account": "acme",
		"scope": "streams:read streams:write", "iat": time.Now().Add(-time.Minute).Unix(), "exp": time.Now().Add(time.Minute).Unix(), "jti": "minted",
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		name, ok := pairs[i].(string)
		if !ok {
			t.Fatalf("%v is no claim's name", pairs[i])
		}
		claims[name] = pairs[i+1]
	}
	token := jwt.NewWithClaims(jwt.SigningMethodES256, claims)
	token.Header["typ"], token.Header["kid"] = "at+jwt", signer.ID
	text, err := token.SignedString(signer.Private)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// expiredToken is a token of our own a second past its end.
func (rg *rig) expiredToken(t testing.TB) string {
	t.Helper()
	return rg.mint(t, "exp", time.Now().Add(-time.Second).Unix())
}
