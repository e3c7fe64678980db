package store

import (
	"encoding/json"
	"errors"
	"net/netip"

	"sluice/internal/tenant"
)

// ErrNobody says that a change has no author. Nothing was changed: it is a fault of ours.
var ErrNobody = errors.New("a change without an author")

// ActorKind is what made a change.
type ActorKind string

// The kinds of actors.
const (
	ActorKey      ActorKind = "key"      // an API key of an account
	ActorOperator ActorKind = "operator" // a call of the admin listener
	ActorSystem   ActorKind = "system"   // the program by itself
	ActorFile     ActorKind = "file"     // what the operator's file states, at a start or a reload
)

// Actor is who made a change, as its record has it.
type Actor struct {
	Kind    ActorKind
	KeyID   string           // of ActorKey alone
	Account tenant.AccountID // whose key it is
}

// Author is who makes a change, and from where. The zero value is nobody, whose changes
// are refused with ErrNobody.
type Author struct {
	actor     Actor
	client    netip.Addr
	requestID string
}

// ByKey is an API key of an account. client is who asks as the gateway understood it, the
// zero value where that is not known; requestID is short and holds no secret.
func ByKey(account tenant.AccountID, keyID string, client netip.Addr, requestID string) Author {
	return Author{Actor{ActorKey, keyID, account}, client, requestID}
}

// ByOperator is a call of the admin listener. client and requestID are as in ByKey.
func ByOperator(client netip.Addr, requestID string) Author {
	return Author{Actor{Kind: ActorOperator}, client, requestID}
}

// BySystem is the program itself: nobody asked.
func BySystem() Author { return Author{actor: Actor{Kind: ActorSystem}} }

// byFile is what the operator's file states.
func byFile() Author { return Author{actor: Actor{Kind: ActorFile}} }

// authorJSON is an author as a row keeps it.
type authorJSON struct {
	Actor     Actor      `json:"actor"`
	Client    netip.Addr `json:"client"`
	RequestID string     `json:"request_id"`
}

// text is how a row keeps an author.
func (a Author) text() string {
	text, err := json.Marshal(authorJSON{a.actor, a.client, a.requestID})
	if err != nil { // nothing of what an author is made of
		return ""
	}
	return string(text)
}

// authorOf reads what text wrote; the program itself where there is nothing.
func authorOf(text string) Author {
	var kept authorJSON
	if err := json.Unmarshal([]byte(text), &kept); err != nil || kept.Actor.Kind == "" {
		return BySystem()
	}
	return Author{kept.Actor, kept.Client, kept.RequestID}
}
