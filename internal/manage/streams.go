package manage

import (
	"errors"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"go.uber.org/zap"

	"sluice/internal/refusal"
	"sluice/internal/store"
	"sluice/internal/tenant"
)

// minExpiry is how far ahead the end of a new stream has to be (design §10).
const minExpiry = time.Minute

// maxContentType bounds a media type, in bytes.
const maxContentType = 255

// mediaTypes are the names of RFC 6838 §4.2, with up to three parameters whose values
// need no quotes. openapi.yaml has the same text.
var mediaTypes = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z!#$&^_.+-]*/[0-9A-Za-z][0-9A-Za-z!#$&^_.+-]*(; ?[0-9A-Za-z_-]+=[0-9A-Za-z!#$&^_.+-]+){0,3}$`)

// streamJSON is a stream as the API shows it.
type streamJSON struct {
	Name        tenant.StreamName `json:"name"`
	URL         string            `json:"url"`
	ContentType string            `json:"content_type"`
	Region      string            `json:"region"`
	Public      bool              `json:"public"`
	State       store.StreamState `json:"state"`
	Incarnation *string           `json:"incarnation"`
	Declared    bool              `json:"declared"`
	CreatedAt   *string           `json:"created_at"`
	ExpiresAt   *string           `json:"expires_at"`
	// TTL is after how many seconds without use Ursula lets it go.
	TTL *int64 `json:"ttl_seconds"`
}

func (a *API) streamJSON(s store.Stream) streamJSON {
	region := s.Region
	if region == "" {
		region = a.o.Region // of a declared one
	}
	state := s.State
	if s.Doomed != "" && (s.Doomed == store.Whatever || s.Doomed == s.Incarnation) {
		state = store.Deleting // by a client, whose request has no answer yet
	}
	var ttl *int64
	if s.TTL != 0 {
		ttl = new(max(0, s.TTL))
	}
	return streamJSON{
		Name: s.Name, URL: a.o.Origin + tenant.StreamPath(s.Account, s.Name), ContentType: s.ContentType, Region: region,
		Public: s.Public, State: state, Incarnation: orNull(s.Incarnation), Declared: s.Declared,
		CreatedAt: timeText(s.CreatedAt), ExpiresAt: timeText(s.ExpiresAt), TTL: ttl,
	}
}

// streamName reads the name in the path.
func (c *call) streamName() (tenant.StreamName, error) {
	name, err := tenant.ParseStreamName(c.id)
	if err == nil {
		err = tenant.CheckStreamPath(c.account, name)
	}
	if err != nil {
		return "", badField("name", "The name in the path is no stream's: "+sentence(err))
	}
	return name, nil
}

// streamError says what a store's error about a stream means.
func streamError(err error) error {
	switch {
	case errors.Is(err, store.ErrNotFound):
		return refusal.New(refusal.StreamNotFound, err)
	case errors.Is(err, store.ErrGone):
		return refusal.Because(refusal.StreamNotFound, "The stream is being deleted.", err)
	case errors.Is(err, store.ErrDeclared):
		return refusal.New(refusal.Declared, err)
	default:
		return err
	}
}

func (a *API) listStreams(c *call) (reply, error) {
	const kind = "stream"
	p, err := c.query.page(kind)
	if err != nil {
		return reply{}, err
	}
	if _, err := tenant.ParseStreamName(p.Prefix); p.Prefix != "" && err != nil {
		return reply{}, badQuery("prefix", "No stream's name begins so: "+sentence(err))
	}
	list, err := a.o.Streams.Streams(c.r.Context(), c.account, p)
	if err != nil {
		return reply{}, err
	}
	list, next := cut(list, p, kind, func(s store.Stream) string { return string(s.Name) })
	page := struct {
		Streams []streamJSON `json:"streams"`
		Next    *string      `json:"next_cursor"`
	}{make([]streamJSON, len(list)), next}
	for i, s := range list {
		page.Streams[i] = a.streamJSON(s)
	}
	return reply{http.StatusOK, page}, nil
}

func (a *API) showStream(c *call) (reply, error) {
	name, err := c.streamName()
	if err != nil {
		return reply{}, err
	}
	s, err := a.o.Streams.Stream(c.r.Context(), c.account, name)
	if err != nil {
		return reply{}, streamError(err)
	}
	return reply{http.StatusOK, a.streamJSON(s)}, nil
}

// wantedStream reads what a create asks for.
func (a *API) wantedStream(c *call) (store.Stream, error) {
	o, err := a.object(c, false)
	if err != nil {
		return store.Stream{}, err
	}
	o.only("name", "content_type", "public", "expires_at", "region")
	now := a.o.Now()
	s := store.Stream{Region: a.o.Region, State: store.Creating, CreatedAt: now.UTC().Truncate(time.Microsecond)}
	s.Account, s.Name, s.ContentType = c.account, tenant.StreamName(o.need("name")), o.need("content_type")
	if public := o.flag("public"); public != nil {
		s.Public = *public
	}
	if t := o.time("expires_at"); t != nil {
		if t.Before(now.Add(minExpiry)) {
			o.fault("expires_at", "A stream expires at least 60 seconds from now.")
		}
		s.ExpiresAt = *t
	}
	if region := o.text("region"); region != nil && *region != a.o.Region {
		message := "The only region there is, is " + a.o.Region + "."
		if a.o.Region == "" {
			message = "This service has no regions: leave it out."
		}
		o.fault("region", message)
	}
	if o.err != nil {
		return s, o.err
	}
	_, err = tenant.ParseStreamName(string(s.Name))
	if err == nil {
		err = tenant.CheckStreamPath(s.Account, s.Name)
	}
	switch {
	case err != nil:
		return s, badField("name", "This is no stream's name: "+sentence(err))
	case len(s.ContentType) > maxContentType || !mediaTypes.MatchString(s.ContentType):
		return s, badField("content_type", "This is a media type as in application/json or text/plain; charset=utf-8.")
	}
	return s, nil
}

func (a *API) createStream(c *call) (reply, error) {
	s, err := a.wantedStream(c)
	if err != nil {
		return reply{}, err
	}
	if s.ID, err = newID(a.o.Random, streamIDPrefix); err != nil {
		return reply{}, err
	}
	// Nobody else takes its first step.
	s.BusyUntil = a.o.Now().Add(a.o.Reconciler.headStart())
	switch err := a.o.Streams.CreateStream(c.r.Context(), a.author(c), s); {
	case errors.Is(err, store.ErrTaken):
		return reply{}, a.taken(c, s)
	case errors.Is(err, store.ErrNotFound):
		return reply{}, a.goneAccount(err)
	case err != nil:
		return reply{}, err
	}
	// From here on the wish is kept, and the answer says so whatever happens.
	err = a.o.Reconciler.Create(c.r.Context(), &s, a.o.CreateWait)
	var refused *refusedError
	switch {
	case err == nil:
	case errors.As(err, &refused) && refused.existing != "":
		return reply{}, refusal.Because(refusal.StreamTaken, "The storage holds a stream of this name with content type "+
			printable(refused.existing)+": create it with that type to take it over, or choose another name.", err).About("content_type")
	case errors.As(err, &refused):
		return reply{}, refusal.Because(refusal.InvalidRequest, "The storage does not take a stream of this content type.", err).About("content_type")
	default:
		a.o.Log.Debug("stream is not created yet", zap.String("stream", tenant.StreamPath(s.Account, s.Name)), zap.Error(err))
		return a.createdLater(c, s)
	}
	return reply{http.StatusCreated, a.streamJSON(s)}, nil
}

// createdLater is what has become of a create that was not done in time: somebody may
// have deleted the stream meanwhile, and a stream that is not going to be is none.
func (a *API) createdLater(c *call, s store.Stream) (reply, error) {
	has, err := a.o.Streams.Stream(c.r.Context(), s.Account, s.Name)
	switch {
	case errors.Is(err, store.ErrNotFound), err == nil && has.ID != s.ID, err == nil && has.State == store.Deleting:
		ref := refusal.Because(refusal.StreamTaken, "The stream was deleted while it was created: create it again.", err)
		if err != nil || has.State != store.Deleting {
			return reply{}, ref.With("Retry-After", "1")
		}
		return reply{}, ref.With("Retry-After", strconv.Itoa(refusal.WholeSeconds(a.o.Reconciler.freeIn(&has))))
	case err == nil:
		s = has
	}
	// Where that is not known, it is kept, and is being created.
	return reply{http.StatusCreated, a.streamJSON(s)}, nil
}

// taken tells a create that was done before from a name that something else has: the
// field is missing only where what has the name is what was asked for.
func (a *API) taken(c *call, want store.Stream) error {
	has, err := a.o.Streams.Stream(c.r.Context(), want.Account, want.Name)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return refusal.Because(refusal.StreamTaken, "A stream of this name was just deleted: try again.", err).With("Retry-After", "1")
	case err != nil:
		return err
	case has.State == store.Deleting:
		wait := refusal.WholeSeconds(a.o.Reconciler.freeIn(&has))
		return refusal.Because(refusal.StreamTaken, "A stream of this name is being deleted: try again after Retry-After seconds.", nil).
			With("Retry-After", strconv.Itoa(wait))
	}
	differs, how := "", ""
	switch {
	case !sameType(has.ContentType, want.ContentType):
		differs, how = "content_type", "with another content type"
	case has.Public && !want.Public:
		differs, how = "public", "and is public"
	case has.Public != want.Public:
		differs, how = "public", "and is private"
	case has.TTL != 0:
		differs, how = "expires_at", "and expires when it is not used"
	case has.ExpiresAt.Equal(want.ExpiresAt):
		return refusal.Because(refusal.StreamTaken, "This stream exists with these settings already: there is nothing to create.", nil)
	case has.ExpiresAt.IsZero():
		differs, how = "expires_at", "and does not expire"
	default:
		differs, how = "expires_at", "and expires at another time"
	}
	return refusal.Because(refusal.StreamTaken, "A stream of this name exists "+how+": choose another name, or delete it.", nil).About(differs)
}

func (a *API) updateStream(c *call) (reply, error) {
	name, err := c.streamName()
	if err != nil {
		return reply{}, err
	}
	o, err := a.object(c, false)
	if err != nil {
		return reply{}, err
	}
	o.only("public")
	public := o.flag("public")
	if public == nil {
		o.fault("public", "This is needed.")
		return reply{}, o.err
	}
	s, err := a.o.Streams.SetPublic(c.r.Context(), a.author(c), c.account, name, *public)
	if err != nil {
		return reply{}, streamError(err)
	}
	return reply{http.StatusOK, a.streamJSON(s)}, nil
}

func (a *API) deleteStream(c *call) (reply, error) {
	name, err := c.streamName()
	if err != nil {
		return reply{}, err
	}
	s, err := a.o.Streams.DeleteStream(c.r.Context(), a.author(c), c.account, name)
	if err != nil {
		return reply{}, streamError(err)
	}
	if err := a.o.Reconciler.Delete(c.r.Context(), &s); err != nil {
		a.o.Log.Debug("stream is deleted later", zap.String("stream", tenant.StreamPath(s.Account, s.Name)), zap.Error(err))
	}
	return reply{http.StatusAccepted, a.streamJSON(s)}, nil
}
