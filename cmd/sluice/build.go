package main

import (
	"errors"
	"fmt"
	"strings"

	"sluice/auth"
	"sluice/config"
	"sluice/internal/secret"
	"sluice/internal/store"
	"sluice/internal/store/memory"
	"sluice/internal/tenant"
	"sluice/ratelimit"
)

// grammar lends the domain's parsers to the reader of the operator's file.
func grammar() config.Grammar {
	return config.Grammar{
		AccountID: func(id string) error { _, err := tenant.ParseAccountID(id); return err },
		StreamName: func(account, name string) error {
			n, err := tenant.ParseStreamName(name)
			if err != nil {
				return err
			}
			return tenant.CheckStreamPath(tenant.AccountID(account), n)
		},
		StreamSet: func(patterns []string) error { _, err := tenant.ParseStreamSet(patterns); return err },
		Digest:    checkDigest,
		Redis:     func(r config.Redis) error { return serversOf(r).Validate() },
		Store:     func(s config.Store) error { return store.CheckURL(s.URL.Reveal()) },
		IssuerURL: func(url string) error { return checkIssuer(url, "") },
		JWKSURL:   func(url string) error { return checkIssuer("https://issuer.example", url) },
		SigningKey: func(text secret.Secret) (string, error) {
			key, err := auth.ParseSigningKey(text)
			return key.ID, err
		},
	}
}

// checkIssuer judges the URLs of another issuer; the rest of it is made up.
func checkIssuer(issuer, jwksURL string) error {
	o := auth.IssuerOptions{Issuer: issuer, JWKSURL: jwksURL, Audience: "x", AccountClaim: "x", Accounts: []tenant.AccountID{"acme"}}
	return o.Check()
}

// serversOf turns the file's Redis into the limiter's.
func serversOf(r config.Redis) ratelimit.Servers {
	return ratelimit.Servers{URL: r.URL.Reveal(), Addrs: r.Addrs, MasterName: r.MasterName, Mode: r.Mode}
}

// checkDigest tells the one mistake that must not be passed over apart.
func checkDigest(text string) error {
	if strings.HasPrefix(text, auth.KeyPrefix) {
		return errors.New("this is the key itself: the file holds its digest only; make a new one with 'sluice api-key generate', for this one has been written down")
	}
	_, err := tenant.ParseDigest(text)
	return err
}

// loadConfig reads the operator's file as both serve and check do.
func loadConfig(path string, env environment) (*config.Config, error) {
	return config.Load(path, configOptions(env))
}

func configOptions(env environment) config.Options {
	return config.Options{Env: env.lookup, Grammar: grammar()}
}

// declared turns the file's accounts into the directory's content.
func declared(c *config.Config) (memory.Content, error) {
	var content memory.Content
	for i, text := range c.Auth.SigningKeys {
		key, err := auth.ParseSigningKey(text)
		if err != nil {
			return content, fmt.Errorf("auth.signing_keys[%d]: %w", i, err)
		}
		content.SigningKeys = append(content.SigningKeys, key)
	}
	for _, a := range c.Accounts {
		id, err := tenant.ParseAccountID(a.ID)
		if err != nil {
			return content, err
		}
		content.Accounts = append(content.Accounts, tenant.Account{
			ID: id, State: tenant.State(a.Status), Limits: limitsOf(a.Limits.Over(c.Limits.Default)),
		})
		for _, s := range a.Streams {
			name, err := tenant.ParseStreamName(s.Name)
			if err != nil {
				return content, err
			}
			content.Streams = append(content.Streams, tenant.Stream{
				Account: id, Name: name, ContentType: s.ContentType, Public: s.Public, Declared: true,
			})
		}
		for _, k := range a.Keys {
			key, err := declaredKey(id, k)
			if err != nil {
				return content, fmt.Errorf("key %s of %s: %w", k.Name, id, err)
			}
			content.Keys = append(content.Keys, key)
		}
	}
	return content, nil
}

// issuersOf turns the file's issuers into the authenticator's.
func issuersOf(c *config.Config) []auth.IssuerOptions {
	list := make([]auth.IssuerOptions, 0, len(c.Auth.Issuers))
	for _, i := range c.Auth.Issuers {
		o := auth.IssuerOptions{Issuer: i.Issuer, Audience: i.Audience, JWKSURL: i.JWKSURL, AccountClaim: i.AccountClaim}
		for _, id := range i.Accounts {
			o.Accounts = append(o.Accounts, tenant.AccountID(id))
		}
		list = append(list, o)
	}
	return list
}

func declaredKey(account tenant.AccountID, k config.Key) (tenant.Key, error) {
	digest, err := tenant.ParseDigest(k.Digest)
	streams := tenant.AllStreams()
	if k.Streams != nil {
		var setErr error
		streams, setErr = tenant.ParseStreamSet(k.Streams)
		err = errors.Join(err, setErr)
	}
	return tenant.Key{
		ID: string(account) + "/" + k.Name, Account: account, Name: k.Name, Digest: digest,
		Access: tenant.Access(k.Access), Streams: streams, ActsAs: tenant.ActsAs(k.ActsAs),
		ExpiresAt: k.ExpiresAt, Declared: true,
	}, err
}

func limitsOf(d config.DefaultLimits) tenant.Limits {
	l := tenant.DefaultLimits()
	l.RequestsPerSecond, l.Burst, l.OpenTails = d.RequestsPerSecond, d.Burst, d.OpenTails
	l.Uploads, l.UploadBytes, l.RequestBytes = d.Uploads, int64(d.UploadBytes), int64(d.RequestBytes)
	return l
}

// largestBody is the largest body that any account may send, which bounds what
// is read of a request whose account is not known yet.
func largestBody(c *config.Config) int64 {
	largest := int64(c.Limits.Default.RequestBytes)
	for _, a := range c.Accounts {
		largest = max(largest, int64(a.Limits.Over(c.Limits.Default).RequestBytes))
	}
	return largest
}
