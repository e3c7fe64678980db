package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sluice/internal/apiclient"
)

// questionShape is what POST /explain of the admin listener takes.
type questionShape struct {
	Method  string   `json:"method"`
	URL     string   `json:"url"`
	Headers []string `json:"headers"`
	Client  string   `json:"client,omitempty"`
}

// explainedShape is what it answers.
type explainedShape struct {
	Request string `json:"request"`
	Steps   []struct {
		Step    string `json:"step"`
		Outcome string `json:"outcome"`
		Why     string `json:"why"`
	} `json:"steps"`
	Outcome   string            `json:"outcome"`
	Status    int               `json:"status"`
	Code      string            `json:"code"`
	Message   string            `json:"message"`
	Headers   map[string]string `json:"headers"`
	Forwarded *struct {
		Method       string            `json:"method"`
		Target       string            `json:"target"`
		To           string            `json:"to"`
		Headers      map[string]string `json:"headers"`
		CacheControl string            `json:"cache_control"`
	} `json:"forwarded"`
	Notes []string `json:"notes"`
}

func (e explainedShape) is() bool {
	return len(e.Steps) > 0 && (e.Outcome == "forwarded") == (e.Forwarded != nil) && e.Outcome != ""
}

// explainCommand is the flags of explain.
type explainCommand struct {
	connection
	config            string
	headers           []string
	client            string
	anonymous, asJSON bool
}

func newExplain(env Environment) *cobra.Command {
	var o explainCommand
	cmd := &cobra.Command{
		Use: "explain METHOD URL", Short: "Say step by step what would become of a request, and why",
		Long: `Say what the gateway would make of a request, step by step, and why: what the client
would get, or what a node would. Nothing is sent to a node, counted against a limit
or written down, and no key counts as used.

The running gateway is asked, by its admin listener (SLUICE_ADMIN_URL,
SLUICE_ADMIN_TOKEN): it knows the store, what was revoked, and how much is left of
each limit. With --config a file decides, and nobody is asked: with what it declares,
and nothing used of any limit.

The credential is TONBO_API_KEY, a key or a token, good or bad; where that is not set
the request has none. It goes to the admin listener only, and is never printed. URL is
that of the stream, or its path and query. A body is asked about by a header:
Content-Length: 2000000, or Transfer-Encoding: chunked.

Exit code 0: it would be served; 3: it would be refused; 1: it could not be
explained; 2: wrong use.`,
		Example: `  sluice explain GET 'https://streams.example.com/acme/s.events?offset=-1'
  sluice explain --client 203.0.113.7 --header 'Content-Length: 2000000' POST /acme/s.events
  sluice explain --config /etc/sluice.yaml --anonymous GET /acme/s.events`,
		Args: named("METHOD", "URL"),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), env, args[0], args[1]) },
	}
	flags := cmd.Flags()
	o.operatorFlags(flags)
	flags.StringVarP(&o.config, "config", "c", "", "an operator's file that decides, in place of the running gateway")
	flags.StringVar(&o.keyFile, "key-file", "", "a file that holds the credential, in place of TONBO_API_KEY; - is standard input")
	flags.BoolVar(&o.anonymous, "anonymous", false, "ask without a credential, whatever TONBO_API_KEY is")
	flags.StringArrayVarP(&o.headers, "header", "H", nil, "a header of the request, as 'Name: value'; may be repeated")
	flags.StringVar(&o.client, "client", "", "the address that it comes from (default 127.0.0.1)")
	flags.BoolVar(&o.asJSON, "json", false, "print the answer as JSON")
	return cmd
}

func (o *explainCommand) run(ctx context.Context, env Environment, method, url string) error {
	q, err := o.question(env, method, url)
	if err != nil {
		return err
	}
	answer, err := o.ask(ctx, env, q)
	if err != nil {
		return err
	}
	var e explainedShape
	if json.Unmarshal(answer, &e) != nil || !e.is() {
		return errors.New("the answer is no explanation: is SLUICE_ADMIN_URL (--admin-url) right?")
	}
	if o.asJSON {
		err = printJSON(env.Out, answer)
	} else {
		err = e.print(env.Out)
	}
	if err == nil && e.Outcome == "refused" {
		err = RefusedError{}
	}
	return err
}

// RefusedError says by the exit code that what was explained is a refusal. It was printed.
type RefusedError struct{}

// Error implements error.
func (RefusedError) Error() string { return "the request would be refused" }

func (o *explainCommand) question(env Environment, method, url string) (questionShape, error) {
	q := questionShape{Method: method, URL: url, Headers: []string{}, Client: o.client}
	if _, err := netip.ParseAddr(o.client); o.client != "" && err != nil {
		return q, usagef("--client %q: write an address without a port, as in 203.0.113.7", o.client)
	}
	for _, line := range append([]string{method, url}, o.headers...) {
		if strings.ContainsAny(line, "\r\n\x00") {
			return q, usagef("a line break is no part of a request's line or header")
		}
	}
	for _, line := range o.headers {
		name, _, ok := strings.Cut(line, ":")
		switch {
		case !ok:
			return q, usagef("--header: write it as 'Name: value'")
		case strings.EqualFold(strings.TrimSpace(name), "Authorization"):
			return q, usagef("--header Authorization: put the credential into TONBO_API_KEY, or a file for --key-file, since flags are seen by others")
		}
		q.Headers = append(q.Headers, line)
	}
	credential, err := o.askedAs(env)
	if credential != "" {
		q.Headers = append(q.Headers, "Authorization: Bearer "+credential)
	}
	return q, err
}

// askedAs is the credential of the request, as it is: a bad one is asked about as well.
func (o *explainCommand) askedAs(env Environment) (text string, err error) {
	switch {
	case o.anonymous && o.keyFile != "":
		return "", usagef("--anonymous is without a credential and --key-file is one: leave one out")
	case o.anonymous:
		return "", nil
	case o.keyFile == "-":
		var raw []byte
		raw, err = io.ReadAll(io.LimitReader(env.In, maxKeyFile))
		text = string(raw)
	case o.keyFile != "":
		text, err = readSecretFile(o.keyFile)
	default:
		text, _ = env.Lookup("TONBO_API_KEY")
	}
	if err != nil {
		return "", usagef("--key-file: %w", err)
	}
	if o.keyFile != "" {
		text = keyInFile(text)
	}
	text = strings.TrimSpace(text)
	if strings.ContainsAny(text, "\r\n\x00") {
		return "", usagef("the credential has more than one line")
	}
	return text, nil
}

// ask has the file decide, or the running gateway.
func (o *explainCommand) ask(ctx context.Context, env Environment, q questionShape) (json.RawMessage, error) {
	if o.config != "" {
		text, err := json.Marshal(q)
		if err != nil {
			return nil, err
		}
		return env.Explain(ctx, o.config, text)
	}
	o.account = "-" // its failures are those of the admin listener
	client, err := o.operator(env)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, stop := interruptible(ctx)
	defer stop()
	answer, err := client.Do(ctx, apiclient.Call{Method: http.MethodPost, Path: "/explain", Body: q})
	return answer, o.explain(err)
}

func (e explainedShape) print(out io.Writer) error {
	t := newTable(out, "STEP", "OUTCOME", "WHY")
	for _, s := range e.Steps {
		t.row(s.Step, s.Outcome, s.Why)
	}
	if err := t.end(); err != nil {
		return err
	}
	_, err := io.WriteString(out, e.ending())
	return err
}

// ending says what comes of it.
func (e explainedShape) ending() string {
	var b strings.Builder
	line := func(format string, args ...any) {
		b.WriteString(apiclient.Printable(fmt.Sprintf(format, args...)) + "\n")
	}
	b.WriteString("\n")
	switch {
	case e.Forwarded != nil:
		line("Answer: forwarded as %s %s to %s", e.Forwarded.Method, e.Forwarded.Target, e.Forwarded.To)
		for _, name := range slices.Sorted(maps.Keys(e.Forwarded.Headers)) {
			line("  %s: %s", name, e.Forwarded.Headers[name])
		}
		line("A success is sent on with Cache-Control: %s", e.Forwarded.CacheControl)
	case e.Status == 0:
		line("Answer: the gateway's own")
	default:
		line("Answer: %s", strings.TrimSpace(strconv.Itoa(e.Status)+" "+e.Code))
		for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
			line("  %s: %s", name, e.Headers[name])
		}
		if e.Message != "" {
			line("  %s", e.Message)
		}
	}
	for _, note := range e.Notes {
		line("Note: %s", note)
	}
	return b.String()
}
