package cli

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"sluice/auth"
	"sluice/internal/apiclient"
	"sluice/internal/secret"
	"sluice/internal/tenant"
)

// maxKeyFile is how much of a file with a key is read, in bytes.
const maxKeyFile = 64 << 10

// connection says where a command goes, and as whom.
type connection struct {
	url, keyFile         string
	account              string // as the operator, for this account
	adminURL, adminToken string // the token's file
	plainHTTP            bool
}

// ownerFlags are those of a command that an account's owner runs.
func (c *connection) ownerFlags(flags *pflag.FlagSet) {
	flags.StringVar(&c.url, "url", "", "the gateway's origin, in place of SLUICE_URL")
	flags.StringVar(&c.keyFile, "key-file", "", "a file that holds the API key, or a line TONBO_API_KEY=…, in place of\nTONBO_API_KEY")
	flags.BoolVar(&c.plainHTTP, "plain-http", false, "send the credential over http to another machine, where the way there\nis private")
}

// operatorFlags are those of a command that goes to the admin listener.
func (c *connection) operatorFlags(flags *pflag.FlagSet) {
	flags.StringVar(&c.adminURL, "admin-url", "", "the admin listener's URL, in place of SLUICE_ADMIN_URL")
	flags.StringVar(&c.adminToken, "admin-token-file", "", "a file that holds the admin token, in place of SLUICE_ADMIN_TOKEN")
	if flags.Lookup("plain-http") == nil {
		flags.BoolVar(&c.plainHTTP, "plain-http", false, "send the token over http to another machine, where the way there is private")
	}
}

// accountFlag lets a command that an owner runs be the operator's.
func (c *connection) accountFlag(flags *pflag.FlagSet) {
	flags.StringVar(&c.account, "account", "", "do it as the operator, for this account: goes to the admin listener")
	c.operatorFlags(flags)
}

// manage is the client of the Management API and the path that its calls begin with:
// the owner's, or with an account named the operator's.
func (c *connection) manage(env Environment) (*apiclient.Client, string, error) {
	if c.account == "" {
		client, err := c.owner(env)
		return client, "/v1", err
	}
	if _, err := tenant.ParseAccountID(c.account); err != nil {
		return nil, "", usagef("--account: %w", err)
	}
	client, err := c.operator(env)
	return client, "/v1/accounts/" + c.account, err
}

// owner is a client with the account's key.
func (c *connection) owner(env Environment) (*apiclient.Client, error) {
	origin, err := c.origin(env)
	if err != nil {
		return nil, err
	}
	key, err := readKey(env.Lookup, c.keyFile)
	if err != nil {
		return nil, UsageError{Err: err}
	}
	return newClient(env, origin, key), nil
}

// origin is where the owner's calls go.
func (c *connection) origin(env Environment) (string, error) {
	return originOf(env, c.url, "--url", "SLUICE_URL", c.plainHTTP)
}

func originOf(env Environment, text, at, variable string, plain bool) (string, error) {
	if text == "" {
		at = variable
		text, _ = env.Lookup(variable)
	}
	origin, err := gatewayOrigin(text, plain)
	if err != nil {
		return "", usagef("%s %w", at, err)
	}
	return origin, nil
}

// operator is a client of the admin listener. The token may be left out: where the
// listener is on loopback it needs none.
func (c *connection) operator(env Environment) (*apiclient.Client, error) {
	text, at := c.adminURL, "--admin-url"
	if text == "" {
		at = "SLUICE_ADMIN_URL"
		text, _ = env.Lookup(at)
	}
	origin, err := originAt(theAdminListener(), text, c.plainHTTP)
	if err != nil {
		return nil, usagef("%s %w", at, err)
	}
	token, _ := env.Lookup("SLUICE_ADMIN_TOKEN")
	if c.adminToken != "" {
		if token, err = readSecretFile(c.adminToken); err != nil {
			return nil, usagef("--admin-token-file: %w", err)
		}
	}
	token = strings.TrimSpace(token)
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return nil, usagef("SLUICE_ADMIN_TOKEN holds a character that no token has")
	}
	return newClient(env, origin, secret.New(token)), nil
}

func newClient(env Environment, origin string, key secret.Secret) *apiclient.Client {
	return apiclient.New(apiclient.Options{
		Origin: origin, Key: key, UserAgent: env.UserAgent, Jitter: rand.Float64,
		Notice: func(n apiclient.Notice) {
			_, _ = fmt.Fprintf(env.Err, "sluice: %v; trying again in %v\n", n.Err, n.Wait.Round(100*time.Millisecond))
		},
	})
}

// readKey is the API key, or a token, of a file or of TONBO_API_KEY. White space
// around it is what files and secret stores put there. Anything else, a password
// perhaps, is not sent.
func readKey(lookup func(string) (string, bool), file string) (secret.Secret, error) {
	at := "TONBO_API_KEY"
	text, _ := lookup(at)
	if file != "" {
		at = "--key-file"
		var err error
		if text, err = readSecretFile(file); err != nil {
			return secret.Secret{}, fmt.Errorf("%s: %w", at, err)
		}
		text = keyInFile(text)
	}
	text = strings.TrimSpace(text)
	if text == "" {
		return secret.Secret{}, fmt.Errorf("%s is not set: it holds the API key, which is read from the environment or, with --key-file, from a file, since flags are seen by others", at)
	}
	_, _, err := auth.Bearer([]string{"Bearer " + text})
	switch {
	case strings.HasPrefix(text, auth.KeyPrefix):
		err = auth.CheckKey(text)
	case strings.Count(text, ".") != 2:
		err = auth.ErrMalformedKey
	}
	if err != nil {
		return secret.Secret{}, fmt.Errorf("%s holds no API key: a character of it is wrong or missing", at)
	}
	return secret.New(text), nil
}

// keyInFile is the key of a file's text: all of it, or what the last line gives that sets
// TONBO_API_KEY, as the line stands that makes a key, and as a shell reads it.
func keyInFile(text string) string {
	key := text
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "export "))
		value, ok := strings.CutPrefix(line, "TONBO_API_KEY=")
		if !ok {
			continue
		}
		for _, quote := range []string{`"`, `'`} {
			if len(value) > 1 && strings.HasPrefix(value, quote) && strings.HasSuffix(value, quote) {
				value = value[1 : len(value)-1]
				break
			}
		}
		key = value
	}
	return key
}

// readSecretFile reads a small file. Its errors repeat nothing of what is in it.
func readSecretFile(path string) (string, error) {
	f, err := os.Open(path) //nolint:gosec // the user's own file
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err == nil && len(text) > maxKeyFile {
		err = errors.New("the file is too large for a key")
	}
	return string(text), err
}
