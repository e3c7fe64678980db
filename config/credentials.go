package config

import (
	"fmt"
	"slices"
)

// maxIssuers is as many as the authenticator takes (auth.Issuers).
const maxIssuers = 64

// auth checks the keys that sign and the issuers that are believed.
func (f *findings) auth(c *Config, g Grammar) {
	ids := make([]string, len(c.Auth.SigningKeys))
	for i, key := range c.Auth.SigningKeys {
		if g.SigningKey == nil || key.IsZero() {
			continue
		}
		var err error
		ids[i], err = g.SigningKey(key)
		f.grammarError(fmt.Sprintf("auth.signing_keys[%d]", i), err, `file:/etc/sluice/signing-1.pem, made by "openssl ecparam -name prime256v1 -genkey -noout"`)
	}
	f.once("auth.signing_keys", ids)
	if n := len(c.Auth.Issuers); n > maxIssuers {
		f.add("auth.issuers", "has %d issuers; at most %d are taken", n, maxIssuers)
	}
	first := make(map[string]string, len(c.Auth.Issuers))
	for i, is := range c.Auth.Issuers {
		path := fmt.Sprintf("auth.issuers[%d]", i)
		f.unique(first, is.Issuer, path, "issuer")
		f.issuer(path, is, c.Origin, g)
	}
}

func (f *findings) issuer(path string, is Issuer, origin string, g Grammar) {
	switch {
	case is.Issuer == "":
	case is.Issuer == origin:
		f.add(path+".issuer", "is this gateway's own origin, whose tokens are taken anyway; write the identity provider's URL, or remove the entry")
	case g.IssuerURL != nil:
		f.grammarError(path+".issuer", g.IssuerURL(is.Issuer), "issuer: https://login.example.com")
	}
	if is.JWKSURL != "" && g.JWKSURL != nil {
		f.grammarError(path+".jwks_url", g.JWKSURL(is.JWKSURL), "jwks_url: https://login.example.com/keys, or remove the key to have it found")
	}
	for j, id := range is.Accounts {
		if id != "" && g.AccountID != nil {
			f.grammarError(fmt.Sprintf("%s.accounts[%d]", path, j), g.AccountID(id), "accounts: [acme]")
		}
	}
	f.once(path+".accounts", is.Accounts)
}

// origins checks the list of whose pages may use the gateway.
func (f *findings) origins(list []string) {
	if i := slices.Index(list, "*"); i >= 0 && len(list) > 1 {
		f.add(fmt.Sprintf("cors.origins[%d]", i), `is every origin, the others of the list too; write origins: ["*"], or the others without it`)
	}
	f.once("cors.origins", list)
}
