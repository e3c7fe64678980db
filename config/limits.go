package config

// Limits are what accounts may use (design §6).
type Limits struct {
	// The limits of an account that sets none of its own.
	Default DefaultLimits `yaml:"default"`

	// What an account always gets on each replica, up to its own limit, however its
	// traffic is split over them, and whether Redis answers or not.
	Floor Floor `yaml:"floor"`

	// Memory for request bodies held at one time, over all accounts, so that a
	// write can be sent again after a leader's redirect. A write that does not
	// fit is refused with 503. An eighth of it, at most 32 MiB, is kept for bodies
	// of up to 1 MiB. At least twice the largest `request_bytes` in force.
	BodyBudget Bytes `yaml:"body_budget" default:"256MiB" eg:"256MiB" min:"0" max:"1024GiB"`
}

// DefaultLimits are one account's limits, complete. Zero closes what it limits.
type DefaultLimits struct {
	// Requests a second that an account may make, sustained. 0 refuses all.
	RequestsPerSecond int `yaml:"requests_per_second" default:"50" eg:"50" min:"0" max:"1000000000"`

	// Requests that may come at once after a pause. At least 1 where
	// `requests_per_second` is above 0; 0 refuses all.
	Burst int `yaml:"burst" default:"100" eg:"100" min:"0" max:"1000000000"`

	// Live reads (`live=sse`, `live=long-poll`) open at one time. 0 refuses all.
	OpenTails int `yaml:"open_tails" default:"16" eg:"16" min:"0" max:"1000000000"`

	// Bodies over 1 MiB that are read at one time. 0 refuses all of them.
	Uploads int `yaml:"uploads" default:"8" eg:"8" min:"0" max:"1000000"`

	// Bytes of such bodies at one time; the only one under way may have more. 0
	// refuses all of them.
	UploadBytes Bytes `yaml:"upload_bytes" default:"64MiB" eg:"64MiB" min:"0" max:"1024GiB"`

	// Bytes of one request's body. At most 32 MiB, which is the node's own
	// limit and fixed there. 0 refuses every body.
	RequestBytes Bytes `yaml:"request_bytes" default:"8MiB" eg:"8MiB" min:"0" max:"32MiB"`
}

// Floor is what a replica grants by itself (design §6).
type Floor struct {
	// Requests a second.
	RequestsPerSecond int `yaml:"requests_per_second" default:"50" eg:"50" min:"0" max:"1000000000"`

	// Live reads open at one time.
	OpenTails int `yaml:"open_tails" default:"16" eg:"16" min:"0" max:"1000000000"`
}

// AccountLimits are one account's own limits; nil takes the default's.
type AccountLimits struct {
	// Requests a second, sustained. Absent: `limits.default`; 0 refuses all.
	RequestsPerSecond *int `yaml:"requests_per_second" eg:"200" min:"0" max:"1000000000"`

	// Requests at once after a pause. Absent: `limits.default`.
	Burst *int `yaml:"burst" eg:"400" min:"0" max:"1000000000"`

	// Live reads open at one time. Absent: `limits.default`; 0 refuses all.
	OpenTails *int `yaml:"open_tails" eg:"64" min:"0" max:"1000000000"`

	// Bodies over 1 MiB read at one time. Absent: `limits.default`; 0 refuses them.
	Uploads *int `yaml:"uploads" eg:"16" min:"0" max:"1000000"`

	// Bytes of such bodies at one time. Absent: `limits.default`; 0 refuses them.
	UploadBytes *Bytes `yaml:"upload_bytes" eg:"128MiB" min:"0" max:"1024GiB"`

	// Bytes of one request's body, at most 32 MiB. Absent: `limits.default`; 0
	// refuses every body.
	RequestBytes *Bytes `yaml:"request_bytes" eg:"1MiB" min:"0" max:"32MiB"`
}

// Over lays the account's own limits over the defaults.
func (l AccountLimits) Over(d DefaultLimits) DefaultLimits {
	over(&d.RequestsPerSecond, l.RequestsPerSecond)
	over(&d.Burst, l.Burst)
	over(&d.OpenTails, l.OpenTails)
	over(&d.Uploads, l.Uploads)
	over(&d.UploadBytes, l.UploadBytes)
	over(&d.RequestBytes, l.RequestBytes)
	return d
}

func over[T any](dst, own *T) {
	if own != nil {
		*dst = *own
	}
}
