package gateway

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/auth"
	"sluice/internal/bubble"
)

// A15: an exchange took its parameters from wherever they stood: as JSON, from the
// URL, twice.
func TestExchangeTakesOneForm(t *testing.T) {
	rg := newRig(t, rigOptions{noNodes: true})
	k := rg.Keys[key]
	good := exchangeForm(k).Encode()
	asJSON, err := json.Marshal(map[string]string{"grant_type": auth.GrantTokenExchange, "subject_token": k, "subject_token_type": auth.TypeAccessToken})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, query, media, body string
		status                   int
		code                     string
	}{
		{"JSON", "", "application/json", string(asJSON), 400, auth.CodeInvalidRequest},
		{"JSON in the name of a form", "", formType, string(asJSON), 400, auth.CodeInvalidRequest},
		{"a form in the name of JSON", "", "application/json", good, 400, auth.CodeInvalidRequest},
		{"no media type", "", "", good, 400, auth.CodeInvalidRequest},
		{"multipart", "", "multipart/form-data; boundary=x", "--x\r\nContent-Disposition: form-data; name=\"grant_type\"\r\n\r\nx\r\n--x--\r\n", 400, auth.CodeInvalidRequest},
		{"in the query", "?" + good, formType, "", 400, auth.CodeInvalidRequest},
		{"in the query too", "?" + good, formType, good, 400, auth.CodeInvalidRequest},
		{"an empty query", "?", formType, good, 400, auth.CodeInvalidRequest},
		{"the subject in the query", "?subject_token=" + k, formType, exchangeForm("").Encode(), 400, auth.CodeInvalidRequest},
		{"subject twice", "", formType, good + "&subject_token=" + k, 400, auth.CodeInvalidRequest},
		{"scope twice", "", formType, good + "&scope=streams%3Aread&scope=streams%3Awrite", 400, auth.CodeInvalidRequest},
		{"grant type twice", "", formType, good + "&grant_type=x", 400, auth.CodeInvalidRequest},
		{"an unknown one twice", "", formType, good + "&x=1&x=2", 400, auth.CodeInvalidRequest},
		{"a semicolon", "", formType, good + ";scope=streams%3Aread", 400, auth.CodeInvalidRequest},
		{"a bad escape", "", formType, good + "&scope=%zz", 400, auth.CodeInvalidRequest},
		{"nothing", "", formType, "", 400, auth.CodeInvalidRequest},
		{"64 KiB", "", formType, good + "&pad=" + strings.Repeat("x", maxForm-len(good)-5), 200, ""},
		{"one more", "", formType, good + "&pad=" + strings.Repeat("x", maxForm-len(good)-4), 413, auth.CodeInvalidRequest},
		{"8 MiB", "", formType, good + "&pad=" + strings.Repeat("x", 8<<20-len(good)-5), 413, auth.CodeInvalidRequest},
		{"with a charset", "", formType + "; charset=UTF-8", good, 200, ""},
		{"another case", "", "Application/X-WWW-Form-URLEncoded", good, 200, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var headers []string
			if tc.media != "" {
				headers = []string{"Content-Type", tc.media}
			}
			for name, body := range map[string]io.Reader{"length": strings.NewReader(tc.body), "chunked": undeclared{strings.NewReader(tc.body)}} {
				res := send(t, http.MethodPost, rg.URL+TokenPath+tc.query, "", body, headers...)
				code, _ := res.oauth()
				if res.StatusCode != tc.status || code != tc.code {
					t.Errorf("%s: %d %.200s, want %d %s", name, res.StatusCode, res.Text, tc.status, tc.code)
				}
				checkOAuthHead(t, res)
			}
		})
	}
	for _, method := range []string{"GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"} {
		res := send(t, method, rg.URL+TokenPath+"?"+good, "", nil)
		if res.StatusCode != http.StatusMethodNotAllowed || res.Header.Get("Allow") != "POST" {
			t.Errorf("%s: %d, Allow %q", method, res.StatusCode, res.Header.Get("Allow"))
		}
	}
	if strings.Contains(rg.Log.String(), k) {
		t.Error("the key is in the log")
	}
}

// OAuth libraries authenticate the client as they are wont to; a header that is no
// credential of ours neither helps nor hurts, whatever stands in it.
func TestExchangeIgnoresTheHeader(t *testing.T) {
	rg := newRig(t, rigOptions{noNodes: true})
	for _, headers := range [][]string{
		{"Authorization", "Basic YXBwOnMzY3JldA=="},
		{"Authorization", "Basic"},
		{"Authorization", "Bearer " + rg.Keys["expired"]},
		{"Authorization", "Basic YTpi", "Authorization", "Bearer x"},
		{"Cookie", "session=1"},
	} {
		if got := rg.exchange(t, exchangeForm(rg.Keys["read"]), headers...).exchanged(t); got.Scope != auth.ScopeRead {
			t.Errorf("%q: scope %s", headers, got.Scope)
		}
		res := rg.exchange(t, exchangeForm(""), append(slices.Clone(headers), "Authorization", "Bearer "+rg.Keys[key])...)
		if code, _ := res.oauth(); res.StatusCode != http.StatusBadRequest || code != auth.CodeInvalidRequest {
			t.Errorf("a key in the header alone: %d %s", res.StatusCode, res.Text)
		}
	}
}

// A form that does not come holds nothing for ever, and its refusal is OAuth's.
func TestExchangeBodyPace(t *testing.T) {
	for _, tc := range []struct {
		name, length string
		body         pacedBody
		took         time.Duration
	}{
		{"silent", "100", pacedBody{}, 30 * time.Second},
		{"silent, chunked", "", pacedBody{}, 30 * time.Second},
		{"trickles", "60000", pacedBody{piece: 100, pieces: 600, every: time.Second}, 30 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				_, _, l := newBubbleRig(t, rigOptions{})
				conn := l.dial()
				start, sent := time.Now(), make(chan struct{})
				go func() {
					defer close(sent)
					tc.body.send(conn, "POST /v1/token HTTP/1.1\r\nHost: x\r\nContent-Type: "+formType+"\r\n", tc.length)
				}()
				res := readAnswer(t, bufio.NewReader(conn), http.MethodPost)
				if took := time.Since(start); res.StatusCode != http.StatusRequestTimeout || !res.Close || took != tc.took {
					t.Errorf("%d, close %t, after %s", res.StatusCode, res.Close, took)
				}
				if code, _ := res.oauth(); code != auth.CodeInvalidRequest {
					t.Errorf("body %s", res.Text)
				}
				_ = conn.Close()
				<-sent
			})
		})
	}
}

// Over HTTP/2 the answer to a form may come before the form has: one that is refused
// by its head is answered whatever its client still sends, and the connection goes
// on; one that is too large is read no further than its refusal needs.
func TestExchangeBodyOverHTTP2(t *testing.T) {
	rg := newRig(t, rigOptions{noNodes: true, change: func(o *Options) { o.Pace = Pace{Stall: 200 * time.Millisecond, DrainStall: 100 * time.Millisecond} }})
	c := protocols(t)["h2"]
	good := exchangeForm(rg.Keys[key]).Encode()
	for _, tc := range []struct {
		name, query, media string
		body               func(*io.PipeWriter)
		status             int
	}{
		{"refused by its head, never ends", "", "application/json", func(w *io.PipeWriter) { _, _ = io.WriteString(w, "{") }, 400},
		{"refused by its URL, never ends", "?x", formType, func(*io.PipeWriter) {}, 400},
		{"never ends", "", formType, func(w *io.PipeWriter) { _, _ = io.WriteString(w, good) }, 408},
		{"breaks", "", formType, func(w *io.PipeWriter) {
			_, _ = io.WriteString(w, good)
			_ = w.CloseWithError(errNoRoute)
		}, 0},
		{"has no end that would be read", "", formType, func(w *io.PipeWriter) {
			for err := error(nil); err == nil; {
				_, err = io.WriteString(w, strings.Repeat("x", 1<<14))
			}
		}, 413},
		{"in pieces", "", formType, func(w *io.PipeWriter) {
			for _, b := range []byte(good) {
				_, _ = w.Write([]byte{b})
			}
			_ = w.Close()
		}, 200},
	} {
		t.Run(tc.name, func(t *testing.T) {
			body, feed := io.Pipe()
			fed := make(chan struct{})
			go func() {
				defer close(fed)
				tc.body(feed)
			}()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, rg.URL+TokenPath+tc.query, body)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", tc.media)
			res, err := c.Do(req)
			switch {
			case tc.status == 0 && err == nil:
				t.Errorf("answered %d", res.StatusCode)
			case tc.status != 0 && err != nil:
				t.Fatal(err)
			}
			if err == nil {
				text, err := io.ReadAll(res.Body)
				_ = res.Body.Close()
				if code, _ := (answer{res, string(text)}).oauth(); res.StatusCode != tc.status || err != nil || (code == "") != (tc.status == 200) {
					t.Errorf("%d %s %v", res.StatusCode, text, err)
				}
			}
			_ = body.Close()
			<-fed
			next, err := http.NewRequestWithContext(t.Context(), http.MethodPost, rg.URL+TokenPath, strings.NewReader(good))
			if err != nil {
				t.Fatal(err)
			}
			next.Header.Set("Content-Type", formType)
			if res, err = c.Do(next); err != nil || res.StatusCode != http.StatusOK {
				t.Fatalf("the next exchange: %v %v", res, err)
			}
			_ = res.Body.Close()
		})
	}
}
