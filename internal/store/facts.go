package store

import (
	"time"

	"sluice/internal/tenant"
)

// timeFact is a time as the API writes it.
func timeFact(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return moment(micros(t)).Format(time.RFC3339Nano)
}

func (a Account) facts() facts {
	l := a.Limits
	return facts{
		"state": string(a.State), declaredFact: a.Declared,
		"limits.requests_per_second": l.RequestsPerSecond, "limits.burst": l.Burst, "limits.open_tails": l.OpenTails,
		"limits.uploads": l.Uploads, "limits.upload_bytes": l.UploadBytes, "limits.request_bytes": l.RequestBytes,
	}
}

// facts of a key have the hints of its secrets, as the API shows them, and never more.
func (k Key) facts() facts {
	f := keyFacts(k.Key)
	f["old_hint"], f["old_until"] = nil, timeFact(k.OldUntil)
	if k.OldHint != "" {
		f["old_hint"] = k.OldHint
	}
	return f
}

func keyFacts(k tenant.Key) facts {
	var streams any // null = all
	if k.Streams.Narrowed() {
		streams = append([]string{}, k.Streams.Patterns()...)
	}
	var hint any
	if k.Hint != "" {
		hint = k.Hint
	}
	return facts{
		"name": k.Name, "hint": hint, "access": string(k.Access), "acts_as": string(k.ActsAs), "streams": streams,
		"expires_at": timeFact(k.ExpiresAt), declaredFact: k.Declared,
	}
}

func (st Stream) facts() facts {
	var ttl any
	if st.TTL != 0 {
		ttl = max(0, st.TTL)
	}
	return facts{
		"content_type": st.ContentType, "public": st.Public, "expires_at": timeFact(st.ExpiresAt), "ttl_seconds": ttl, declaredFact: st.Declared,
	}
}
