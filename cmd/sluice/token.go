package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"sluice/auth"
	"sluice/gateway"
	"sluice/internal/secret"
	"sluice/internal/tenant"
)

// Bounds of a token exchange, as the client sees it.
const (
	exchangeTime   = 30 * time.Second // from the dial to the last byte
	maxAnswer      = 64 << 10         // bytes of an answer
	maxAnswerHead  = 32 << 10
	maxDescription = 300 // characters of what the gateway says
)

func newToken(env environment) *cobra.Command {
	group := &cobra.Command{
		Use: "token", Short: "Make tokens of an API key",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unknown command %q; there is: token create", args[0])}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	group.AddCommand(newTokenCreate(env))
	return group
}

// tokenFlags are the command line of token create.
type tokenFlags struct {
	url, expiresIn    string
	streams           []string
	readOnly          bool
	asJSON, plainHTTP bool
}

func newTokenCreate(env environment) *cobra.Command {
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
			r, err := readTokenRequest(f, cmd.Flags().Changed("expires-in"), env.lookup)
			if err != nil {
				return usageError{err}
			}
			answer, token, err := r.send(cmd.Context(), exchangeTransport(http.ProxyFromEnvironment))
			if err != nil {
				return err
			}
			if f.asJSON {
				token = string(bytes.TrimSpace(answer))
			}
			_, err = fmt.Fprintln(env.out, token)
			return err
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.readOnly, "read-only", false, "the token reads only")
	flags.StringArrayVar(&f.streams, "stream", nil, "the token reaches this stream only: ACCOUNT/NAME, ACCOUNT/PREFIX*, or\nthe stream's URL; may be given several times")
	flags.StringVar(&f.expiresIn, "expires-in", "", "when it ends: N_seconds, N_minutes or N_hours, from 30 seconds to an hour")
	flags.StringVar(&f.url, "url", "", "the gateway's origin, in place of SLUICE_URL")
	flags.BoolVar(&f.plainHTTP, "plain-http", false, "send the key over http to another machine, where the way there is private")
	flags.BoolVar(&f.asJSON, "json", false, "print what the gateway answered")
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
	if r.Subject, err = subjectToken(lookup); err != nil {
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
		if r.lifetime, err = parseExpiresIn(f.expiresIn); err != nil {
			return r, fmt.Errorf("--expires-in: %w", err)
		}
		if r.lifetime < auth.MinTokenLifetime || r.lifetime > tenant.MaxTokenLife {
			return r, errors.New("--expires-in: a token lives from 30_seconds to 1_hours")
		}
	}
	return r, nil
}

// gatewayOrigin reads the one place that the key may be sent to. http is for
// this machine, unless plain says that the way is private.
func gatewayOrigin(text string, plain bool) (string, error) {
	const want = "the gateway's origin, as in https://streams.example.com"
	if text == "" {
		return "", errors.New("is not set: it is " + want)
	}
	u, err := url.Parse(strings.TrimSuffix(text, "/"))
	switch {
	case err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http":
		return "", errors.New("is no http or https URL: it is " + want)
	case u.User != nil || u.Path != "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.Contains(text, "#"):
		return "", errors.New("has more than scheme, host and port: it is " + want)
	case u.Scheme == "http" && !plain && !loopbackHost(u.Hostname()):
		return "", errors.New("is http, which would send the key in clear: use https, or --plain-http where the way to that machine is private")
	}
	host := strings.ToLower(u.Host)
	if port := map[string]string{"http": ":80", "https": ":443"}[u.Scheme]; strings.HasSuffix(host, port) {
		host = strings.TrimSuffix(host, port)
	}
	return u.Scheme + "://" + strings.TrimSuffix(host, ":"), nil
}

func loopbackHost(host string) bool {
	a, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && a.Unmap().IsLoopback()
}

// subjectToken is what is exchanged: a key, or a token. White space around it is
// what files and secret stores put there. Anything else, a password perhaps, is
// not sent.
func subjectToken(lookup func(string) (string, bool)) (secret.Secret, error) {
	text, _ := lookup("TONBO_API_KEY")
	text = strings.TrimSpace(text)
	_, _, err := auth.Bearer([]string{"Bearer " + text})
	switch {
	case text == "":
		return secret.Secret{}, errors.New("TONBO_API_KEY is not set: it holds the API key, and is read from the environment only, since flags are seen by others")
	case strings.HasPrefix(text, auth.KeyPrefix):
		err = auth.CheckKey(text)
	case strings.Count(text, ".") != 2:
		err = auth.ErrMalformedKey
	}
	if err != nil {
		return secret.Secret{}, errors.New("TONBO_API_KEY holds no API key: a character of it is wrong or missing")
	}
	return secret.New(text), nil
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

// parseExpiresIn reads N_seconds, N_minutes, N_hours or N_days (design §10), and
// the singular of each.
func parseExpiresIn(text string) (time.Duration, error) {
	number, name, _ := strings.Cut(text, "_")
	unit, ok := map[string]time.Duration{
		"second": time.Second, "minute": time.Minute, "hour": time.Hour, "day": 24 * time.Hour,
	}[strings.TrimSuffix(name, "s")]
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || !ok || n == 0 {
		return 0, errors.New("write a number and a unit, as in 90_seconds, 15_minutes, 1_hours or 30_days")
	}
	return time.Duration(n) * unit, nil
}

// exchangeTransport goes out once. A proxy is used for https only: over http it
// would read the key.
func exchangeTransport(proxy func(*http.Request) (*url.URL, error)) *http.Transport {
	return &http.Transport{
		Proxy: func(r *http.Request) (*url.URL, error) {
			if r.URL.Scheme != "https" {
				return nil, nil
			}
			return proxy(r)
		},
		ForceAttemptHTTP2: true, DisableKeepAlives: true, MaxResponseHeaderBytes: maxAnswerHead,
	}
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
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.origin+gateway.TokenPath, strings.NewReader(form.Encode()))
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
	if json.Unmarshal(body.Error, &own) != nil {
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
	return errors.New(r.oneLine(text))
}

// oneLine keeps what somebody else wrote from doing anything to a terminal, and
// from repeating the key.
func (r tokenRequest) oneLine(text string) string {
	text = strings.ReplaceAll(text, r.Subject.Reveal(), "<key>")
	text = strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) {
			return c
		}
		return -1
	}, text)
	if all := []rune(text); len(all) > maxDescription {
		text = string(all[:maxDescription]) + "…"
	}
	return text
}
