package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice/auth"
	"sluice/internal/apiclient"
	"sluice/internal/secret"
	"sluice/internal/tenant"
)

// tokenPath is where tokens are made (RFC 8693; design §5).
const tokenPath = "/v1/token"

// Bounds of a token exchange, as the client sees it.
const (
	exchangeTime = 30 * time.Second // from the dial to the last byte
	maxAnswer    = 64 << 10         // bytes of an answer
)

func newToken(env Environment) *cobra.Command {
	return group("token", "Make tokens of an API key", newTokenCreate(env))
}

// tokenFlags are the command line of token create.
type tokenFlags struct {
	url, expiresIn    string
	keyFile           string
	streams           []string
	readOnly          bool
	asJSON, plainHTTP bool
}

func newTokenCreate(env Environment) *cobra.Command {
	var f tokenFlags
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Exchange the API key for a token, and print it",
		Long: `Exchange the API key in TONBO_API_KEY for a token at the gateway in SLUICE_URL,
and print the token, alone. It reaches what the key reaches, unless the flags
narrow it, and never more; it ends with the key, and after ten minutes unless
--expires-in or the gateway's operator says otherwise.

TONBO_API_KEY may hold a token as well: the new one ends no later than that.
The key is sent to SLUICE_URL only; no redirect is followed.

Exit code 0: the token was printed; 1: it was refused, or nobody answered;
2: wrong use, and nothing was sent.`,
		Example: `  export SLUICE_URL=https://streams.example.com TONBO_API_KEY=tbo_…
  TOKEN=$(sluice token create --read-only --stream acme/events --expires-in 15_minutes)
  curl -H "Authorization: Bearer $TOKEN" "$SLUICE_URL/acme/s.events?offset=-1"`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := readTokenRequest(f, cmd.Flags().Changed("expires-in"), env.Lookup)
			if err != nil {
				return UsageError{Err: err}
			}
			answer, token, err := r.send(cmd.Context(), exchangeTransport(http.ProxyFromEnvironment))
			if err != nil {
				return err
			}
			if f.asJSON {
				token = string(bytes.TrimSpace(answer))
			}
			_, err = fmt.Fprintln(env.Out, token)
			return err
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.readOnly, "read-only", false, "the token reads only")
	flags.StringArrayVar(&f.streams, "stream", nil, "the token reaches this stream only: ACCOUNT/NAME, ACCOUNT/PREFIX*, or\nthe stream's URL; may be given several times")
	flags.StringVar(&f.expiresIn, "expires-in", "", "when it ends: N_seconds, N_minutes or N_hours, from 30 seconds to an hour")
	flags.StringVar(&f.url, "url", "", "the gateway's origin, in place of SLUICE_URL")
	flags.StringVar(&f.keyFile, "key-file", "", "a file that holds the key, or a line TONBO_API_KEY=…, in place of\nTONBO_API_KEY")
	flags.BoolVar(&f.plainHTTP, "plain-http", false, "send the key over http to another machine, where the way there is private")
	flags.BoolVar(&f.asJSON, "json", false, "print what the gateway answered")
	completeFlag(cmd, "stream", func(ctx context.Context, typed string) []cobra.Completion {
		to := connection{url: f.url, keyFile: f.keyFile, plainHTTP: f.plainHTTP}
		return to.streamsOfAccount(env)(ctx, typed)
	})
	return cmd
}

// tokenRequest is a token exchange to be made.
type tokenRequest struct {
	origin    string // of the gateway, in its one spelling
	Subject   secret.Secret
	readOnly  bool
	resources []string // URLs of streams; none = all
	lifetime  time.Duration
}

// readTokenRequest reads the command line and the environment. Its errors repeat
// nothing that could be a credential.
func readTokenRequest(f tokenFlags, timed bool, lookup func(string) (string, bool)) (tokenRequest, error) {
	r := tokenRequest{readOnly: f.readOnly}
	at, text := "--url", f.url
	if text == "" {
		at = "SLUICE_URL"
		text, _ = lookup(at)
	}
	var err error
	if r.origin, err = gatewayOrigin(text, f.plainHTTP); err != nil {
		return r, fmt.Errorf("%s %w", at, err)
	}
	if r.Subject, err = readKey(lookup, f.keyFile); err != nil {
		return r, err
	}
	for _, s := range f.streams {
		resource, err := streamResource(r.origin, s)
		if err != nil {
			return r, fmt.Errorf("--stream %q: %w", s, err)
		}
		r.resources = append(r.resources, resource)
	}
	if timed {
		if r.lifetime, err = parseLifetime(f.expiresIn); err != nil {
			return r, fmt.Errorf("--expires-in: %w", err)
		}
		if r.lifetime < auth.MinTokenLifetime || r.lifetime > tenant.MaxTokenLife {
			return r, errors.New("--expires-in: a token lives from 30_seconds to 1_hours")
		}
	}
	return r, nil
}

// streamResource is the URL of a stream, from ACCOUNT/NAME or from itself. The
// account has to be said, since a client cannot read it from a key.
func streamResource(origin, stream string) (string, error) {
	if strings.Contains(stream, "://") {
		return stream, nil
	}
	account, name, ok := strings.Cut(stream, "/")
	if !ok {
		return "", errors.New("write ACCOUNT/NAME, as in acme/events, or the stream's URL")
	}
	id, err := tenant.ParseAccountID(account)
	if err != nil {
		return "", err
	}
	if rest, ok := strings.CutPrefix(name, tenant.StreamPrefix); ok {
		return "", fmt.Errorf("write %s/%s without the %q of the URL; a stream whose own name begins with it is named by its URL", account, rest, tenant.StreamPrefix)
	}
	if _, err := tenant.ParseStreamSet([]string{name}); err != nil {
		return "", err
	}
	return origin + tenant.StreamPath(id, tenant.StreamName(name)), nil
}

// exchangeTransport goes out once.
func exchangeTransport(proxy func(*http.Request) (*url.URL, error)) *http.Transport {
	way := apiclient.NewTransport(proxy)
	way.DisableKeepAlives = true
	return way
}

// send makes the exchange (RFC 8693 §2.1) and gives the whole answer and the
// token in it. It takes exchangeTime at most.
func (r tokenRequest) send(ctx context.Context, way http.RoundTripper) (answer []byte, token string, err error) {
	form := url.Values{
		"grant_type":         {auth.GrantTokenExchange},
		"subject_token":      {r.Subject.Reveal()},
		"subject_token_type": {auth.TypeAccessToken},
	}
	if r.readOnly {
		form.Set("scope", auth.ScopeRead)
	}
	if len(r.resources) > 0 {
		form["resource"] = r.resources
	}
	if r.lifetime > 0 {
		form.Set("expires_in", strconv.FormatInt(int64(r.lifetime/time.Second), 10))
	}
	ctx, cancel := context.WithTimeout(ctx, exchangeTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.origin+tokenPath, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, "", err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	client := http.Client{Transport: way, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		return nil, "", r.unanswered(ctx, err)
	}
	defer func() { _ = res.Body.Close() }()
	answer, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, "", r.unanswered(ctx, err)
	case len(answer) > maxAnswer:
		return nil, "", r.strange("its answer is too large")
	}
	token, err = r.read(res, answer)
	return answer, token, err
}

// unanswered is the error of an exchange that broke. What net/http says names
// the URL a second time, in quotes.
func (r tokenRequest) unanswered(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%s did not answer within %v", r.origin, exchangeTime)
	}
	var within *url.Error
	if errors.As(err, &within) {
		err = within.Err
	}
	return fmt.Errorf("%s cannot be asked: %w", r.origin, err)
}

func (r tokenRequest) strange(what string) error {
	return fmt.Errorf("%s does not answer as a gateway does: %s; is SLUICE_URL the gateway's origin?", r.origin, what)
}

// read finds the token in an answer (RFC 8693 §2.2.1). What is not made of a
// token's characters is not printed: it could be anything.
func (r tokenRequest) read(res *http.Response, answer []byte) (string, error) {
	switch {
	case res.StatusCode >= 300 && res.StatusCode < 400:
		return "", fmt.Errorf("%s redirects (status %d), and the key goes to no other place: set SLUICE_URL to the gateway's origin", r.origin, res.StatusCode)
	case res.StatusCode != http.StatusOK:
		return "", r.refused(res, answer)
	}
	var body struct {
		Token string `json:"access_token"`
		Type  string `json:"token_type"`
	}
	if err := json.Unmarshal(answer, &body); err != nil || !strings.EqualFold(body.Type, "Bearer") {
		return "", r.strange("there is no token in it")
	}
	if _, _, err := auth.Bearer([]string{"Bearer " + body.Token}); err != nil {
		return "", r.strange("there is no token in it")
	}
	return body.Token, nil
}

// refused is the error of a refusal, in one line: OAuth's (RFC 6749 §5.2), or one
// of the gateway's own.
func (r tokenRequest) refused(res *http.Response, answer []byte) error {
	var body struct {
		Error       json.RawMessage `json:"error"`
		Description string          `json:"error_description"`
	}
	var own struct{ Code, Message string }
	_ = json.Unmarshal(answer, &body) // of whatever is missing nothing is said
	oauth := json.Unmarshal(body.Error, &own) != nil
	if oauth {
		_ = json.Unmarshal(body.Error, &own.Code)
		own.Message = body.Description
	}
	if own.Code == "" {
		return r.strange("status " + strconv.Itoa(res.StatusCode))
	}
	text := own.Code
	if own.Message != "" {
		text += ": " + own.Message
	}
	if wait, err := strconv.ParseUint(res.Header.Get("Retry-After"), 10, 31); err == nil {
		text += fmt.Sprintf("; try again in %d s", wait)
	}
	if id := res.Header.Get("X-Request-Id"); id != "" {
		text += " (request id " + id + ")"
	}
	if !oauth && (res.StatusCode == http.StatusBadRequest || res.StatusCode == http.StatusNotFound) {
		return errors.New(r.oneLine(text) + "; is SLUICE_URL the gateway's origin?") // one refuses an exchange in OAuth's form
	}
	return errors.New(r.oneLine(text))
}

// oneLine keeps what somebody else wrote from doing anything to a terminal, and
// from repeating the key.
func (r tokenRequest) oneLine(text string) string {
	return apiclient.Printable(strings.ReplaceAll(text, r.Subject.Reveal(), "<key>"))
}
