package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"sluice/internal/apiclient"
)

// explain adds to a failure what to do next, in terms of the command line. Nil stays
// nil.
func (c *connection) explain(err error) error {
	var usage UsageError
	if err == nil || errors.As(err, &usage) {
		return err
	}
	var refused *apiclient.Error
	var broken *apiclient.UnansweredError
	var strange *apiclient.StrangeError
	hint := ""
	switch {
	case errors.Is(err, context.Canceled):
		err = errInterrupted
	case errors.As(err, &refused):
		hint = c.refusedHint(refused)
	case errors.As(err, &broken):
		hint = fmt.Sprintf("is %s right, and does the gateway run?", c.place())
	case errors.As(err, &strange):
		hint = fmt.Sprintf("is %s right?", c.place())
	}
	if hint == "" {
		return err
	}
	return hinted{err, hint}
}

// hinted is a failure with what to do next.
type hinted struct {
	error
	hint string
}

func (h hinted) Error() string { return strings.TrimSuffix(h.error.Error(), ".") + "; " + h.hint }

func (h hinted) Unwrap() error { return h.error }

// operates tells whether the command goes to the admin listener.
func (c *connection) operates() bool { return c.account != "" }

// asOperator is what another command needs to be about the same account.
func (c *connection) asOperator() string {
	if c.account == "" {
		return ""
	}
	return " --account " + c.account
}

// place is what says where a command goes.
func (c *connection) place() string {
	if c.operates() {
		return "SLUICE_ADMIN_URL (--admin-url)"
	}
	return "SLUICE_URL (--url)"
}

func (c *connection) credential() string {
	if c.operates() {
		return "SLUICE_ADMIN_TOKEN (--admin-token-file)"
	}
	return "TONBO_API_KEY (--key-file)"
}

// flagOf says on the command line what a field of a request is; empty where it is
// nothing of it.
func flagOf(field string) string {
	switch field {
	case "expires_at":
		return "--expires-in"
	case "streams":
		return "--stream"
	case "name":
		return "NAME"
	case "id":
		return "ID"
	case "overlap_seconds":
		return "--overlap"
	case "from":
		return "--since"
	case "to":
		return "--until"
	case "content_type", "public", "state", "region", "prefix", "since", "until", "action", "actor", "target", "class":
		return "--" + strings.ReplaceAll(field, "_", "-")
	default:
		return ""
	}
}

func (c *connection) refusedHint(e *apiclient.Error) string {
	if flag := flagOf(e.Field); flag != "" && e.Status == http.StatusBadRequest {
		return "correct " + flag
	}
	if limit, ok := strings.CutPrefix(e.Field, "limits."); ok {
		return "correct --limit " + limit + "=…"
	}
	switch {
	case e.Status == http.StatusUnauthorized && strings.Contains(e.Message, "direct use"):
		return "put a valid one into " + c.credential() + "; an agent's key is good for 'sluice token create' only, and the token goes there in its place"
	case e.Status == http.StatusUnauthorized:
		return "put a valid one into " + c.credential()
	case e.Code == "INVALID_OFFSET":
		return "correct --offset"
	case e.Status == http.StatusForbidden && strings.Contains(e.Message, "agent's key"):
		return "it is good for 'sluice token create' only: the token goes into " + c.credential() + " in its place, and reaches streams named ACCOUNT/NAME"
	case e.Status == http.StatusForbidden && e.Code == "FORBIDDEN":
		return "use another key in " + c.credential() + ": managing takes one that acts as a user, writes, and is not narrowed; " +
			"a stream's data takes one that reaches the stream, which is named ACCOUNT/NAME then"
	case e.Code == "STREAM_NOT_FOUND" || e.Code == "BUCKET_NOT_FOUND":
		return "'sluice stream list" + c.asOperator() + "' shows what there is"
	case e.Code == "API_KEY_NOT_FOUND":
		return "'sluice api-key list" + c.asOperator() + "' shows what there is"
	case e.Code == "API_KEY_ROTATION_CONFLICT":
		return "--end-older ends the older secret at once"
	case e.Code == "ACCOUNT_NOT_FOUND":
		return "'sluice account list' shows what there is"
	case e.Status == http.StatusNotFound && (e.Code == "NOT_FOUND" || e.Code == ""):
		return "is " + c.place() + " right?"
	case e.Status == http.StatusGone && e.Resume != "":
		return "what is left begins at --offset " + e.Resume
	case e.Status == http.StatusPreconditionFailed:
		return "the stream was deleted and made again under its name: begin anew"
	case e.Code == "PRODUCER_KEY_CONFLICT":
		return "another text was appended under this --producer-id, as where the file has grown or changed since"
	case e.Code == "PRODUCER_SEQ_CONFLICT":
		return "the stream does not know what came before: it was deleted and made again under its name"
	case e.RetryAfter > 0:
		return fmt.Sprintf("try again in %v", e.RetryAfter.Round(time.Second))
	case e.Foreign && e.Status < 500:
		return "that is no answer of the Management API: is " + c.place() + " right?"
	default:
		return ""
	}
}
