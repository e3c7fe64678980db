package config

import (
	"net/netip"
	"time"

	"sluice/internal/secret"
)

// Config is the operator's file, complete: absent keys have their defaults.
// It is not changed after Parse, so it may be read by many goroutines.
type Config struct {
	// Addresses of the public listener, `host:port`; one text or a list. An
	// empty host is every interface of the machine, port 0 a free port.
	Listen []string `yaml:"listen" default:":8080" eg:"\":8080\"" format:"listen" list:"nonempty,single" restart:"true"`

	// What clients call this gateway: scheme and host, and the port where it is
	// not the scheme's own. Stream URLs begin with it, and it is the issuer and
	// the audience of tokens; it is never taken from a request. Changing it
	// changes every stream's URL, and ends every token.
	Origin string `yaml:"origin" required:"true" eg:"https://streams.example.com" format:"origin" restart:"true"`

	// The listener for the operator: health, metrics, reload.
	Admin Admin `yaml:"admin"`

	// TLS of the public listener.
	TLS TLS `yaml:"tls"`

	// The Ursula cluster behind this gateway.
	Ursula Ursula `yaml:"ursula" required:"true" eg:"{nodes: [\"http://10.0.0.1:4437\"]}"`

	// Where accounts, streams and keys are kept that people manage.
	Store Store `yaml:"store"`

	// The records of changes, which the store keeps.
	Audit Audit `yaml:"audit"`

	// Where replicas share the counts of limits.
	Redis Redis `yaml:"redis"`

	// A name for where this gateway and its cluster run; it is shown to
	// clients as the region of their streams and has no effect on routing.
	Region string `yaml:"region" eg:"eu" format:"label"`

	// Credentials: the token exchange, and whose tokens are taken beside keys.
	Auth Auth `yaml:"auth"`

	// What accounts may use.
	Limits Limits `yaml:"limits"`

	// Rules for all streams.
	Streams Streams `yaml:"streams"`

	// Live reads.
	Tails Tails `yaml:"tails"`

	// Pages of other origins.
	CORS CORS `yaml:"cors"`

	// What accounts use, to be billed.
	Usage Usage `yaml:"usage"`

	// The public server itself.
	Server Server `yaml:"server"`

	// Addresses (`10.0.0.9`) or networks (`10.0.0.0/8`) of the proxies whose
	// `Forwarded` and `X-Forwarded-For` are believed, or whose header of the PROXY
	// protocol is (`proxy_protocol`). Empty: none, and the
	// client's address is the peer's. Anybody inside can claim any address. Where
	// the two headers name different clients neither is believed: let the proxy
	// remove the one that it does not write.
	TrustedProxies []netip.Prefix `yaml:"trusted_proxies" eg:"[10.0.0.0/8]"`

	// Whether load balancers tell whom they pass on by the PROXY protocol (versions 1 and
	// 2), before TLS, on `listen` and `tls.http_listen`; never on `admin.listen`. `off`: a
	// header of it is a bad request. `optional`: peers in `trusted_proxies` may begin a
	// connection with one; who else does is closed. `required`: a connection that does not
	// come from one of them and begin with a header is closed. The address in the header is
	// the client's then, and `Forwarded` and `X-Forwarded-For` are believed only
	// where it is itself one of `trusted_proxies`. Needs `trusted_proxies`.
	ProxyProtocol string `yaml:"proxy_protocol" default:"off" eg:"required" enum:"off|optional|required" restart:"true"`

	// How long a stop goes on serving, new connections too, once `/readyz` is 503 and
	// each answer closes its connection: the time that a load balancer needs to look
	// elsewhere. An upgrade does not need it.
	DrainDelay time.Duration `yaml:"drain_delay" default:"5s" eg:"5s" min:"0s" max:"1h"`

	// How long a stop waits, behind `drain_delay`, for requests in flight before it
	// cuts them; live reads are ended over this time, little by little. Keep both
	// together below the time after which the supervisor kills the process.
	DrainTimeout time.Duration `yaml:"drain_timeout" default:"30s" eg:"30s" min:"0s" max:"24h"`

	// Whether this file, and the files that it refers to, are looked after and taken up
	// when they change, as a reload does it.
	Watch bool `yaml:"watch" default:"true" eg:"false"`

	// The log, JSON lines on standard error.
	Log Log `yaml:"log"`

	// Traces (OpenTelemetry).
	Trace Trace `yaml:"trace"`

	// The declared accounts. What stands here cannot be changed through the API.
	Accounts []Account `yaml:"accounts" eg:"[{id: acme}]"`

	warnings []Problem
	expiries []expiry
	tailCaps []tailCap
}

// Admin is the listener for the operator (design §11).
type Admin struct {
	// Address of the admin listener, `host:port`. It is for operators, never for
	// the public: it serves metrics and takes reloads.
	Listen string `yaml:"listen" default:"127.0.0.1:9090" eg:"127.0.0.1:9090" format:"listen" restart:"true"`

	// The bearer token that the admin listener asks for. Required where `listen`
	// is not a loopback address; where it is set, it is always asked for, but for
	// `/livez` and `/readyz`. Letters, digits and `-._~+/`, with `=` at the end
	// only; take 32 random characters or more.
	Token secret.Secret `yaml:"token" eg:"\"${SLUICE_ADMIN_TOKEN}\"" format:"bearer" restart:"true"`

	// Whether the admin listener serves Go's profiles of the process under
	// `/debug/pprof/`, to whoever it serves metrics to.
	Pprof bool `yaml:"pprof" default:"false" eg:"true"`
}

// Ursula is the cluster behind the gateway.
type Ursula struct {
	// Base URLs of the nodes, at least one, each once: `http` or `https`, host
	// and port. Requests go to no other address, whatever a node answers. All
	// nodes belong to one cluster.
	Nodes []string `yaml:"nodes" required:"true" eg:"[\"http://10.0.0.1:4437\"]" format:"node" list:"nonempty"`

	// Raft groups of the cluster, as its own configuration says (`raft.group_count`).
	// With it a redirect teaches the leader of all streams of a group. 0: the nodes
	// are asked, and until one tells, a redirect teaches of one stream at a time. A
	// wrong number costs redirects, nothing else.
	GroupCount int `yaml:"group_count" default:"0" eg:"16" min:"0" max:"65536"`
}

// Store says where what people manage is kept. Without it the declared accounts are
// all there are, in memory, and there is no Management API.
type Store struct {
	// `sqlite:` and the path of a file, for one replica; it is made where it is missing. A
	// path that does not begin with `/` is one from the folder in which `serve` was started.
	// `postgres://user:password@host:port/database` for several, which all name the
	// same. What the file declares is applied to it and marked as declared.
	URL secret.Secret `yaml:"url" eg:"sqlite:/var/lib/sluice/sluice.db" restart:"true"`

	// How long keys, accounts and streams that are known go on being taken while the
	// store is out of reach. So long may a revocation elsewhere go unheard. 0 refuses
	// at once.
	StaleFor time.Duration `yaml:"stale_for" default:"15m" eg:"15m" min:"0s" max:"24h" restart:"true"`

	// The most keys that a replica remembers, as many streams, and a fifth as many
	// accounts: about 3 KiB of memory for each key and its stream. The longest unused goes
	// first, and is asked for again at its next request. More than are in use at one time
	// spares the store work, and customers a loss of the store.
	KnownKeys int `yaml:"known_keys" default:"100000" eg:"100000" min:"1000" max:"10000000" restart:"true"`
}

// Configured reports whether there is a store.
func (s Store) Configured() bool { return !s.URL.IsZero() }

// Audit is the section for the records of changes.
type Audit struct {
	// How long a record is kept, that of a deleted account too. 0: for ever. A replica
	// takes out what is older a little at a time; with several, give all the same.
	Keep time.Duration `yaml:"keep" default:"9600h" eg:"9600h" min:"0s" max:"876000h"`
}

// Redis says where replicas share their counts: a single server, Sentinel or a
// Cluster. Without it each process counts by itself.
type Redis struct {
	// The server: `redis://` or `rediss://`, with user and password where it wants
	// them, and the database's number. For Sentinel and Cluster one of the servers, with
	// `addrs` for the others.
	URL secret.Secret `yaml:"url" eg:"redis://10.0.0.9:6379/0" restart:"true"`

	// `host:port` of further Sentinels, or of nodes of the Cluster.
	Addrs []string `yaml:"addrs" eg:"[\"10.0.0.9:26379\", \"10.0.0.10:26379\"]" restart:"true"`

	// What Sentinel calls the master.
	MasterName string `yaml:"master_name" eg:"limits" format:"label" restart:"true"`

	// `single`, `sentinel` or `cluster`. Absent: `sentinel` with a `master_name`,
	// else `cluster` with more than one address, else `single`.
	Mode string `yaml:"mode" eg:"cluster" enum:"single|sentinel|cluster" restart:"true"`
}

// Configured reports whether counts are shared.
func (r Redis) Configured() bool { return !r.URL.IsZero() || len(r.Addrs) > 0 }

// Auth is the section for credentials (design §5).
type Auth struct {
	// How long a token lives for which its client asks no time: 30 s to an hour.
	// A token never outlives the key that it was made from.
	TokenLifetime time.Duration `yaml:"token_lifetime" default:"10m" eg:"10m" min:"30s" max:"1h"`

	// Tokens a second that one key may be exchanged for, sustained, and twice as
	// many at once; over it the exchange answers 429. 0 turns the exchange off.
	ExchangePerSecond int `yaml:"exchange_per_second" default:"10" eg:"10" min:"0" max:"1000000"`

	// The private keys that tokens are signed with: P-256, PEM (PKCS 8 or SEC 1),
	// as `openssl ecparam -name prime256v1 -genkey -noout` makes them, each once and
	// one in a file. The first signs, the others verify. All replicas need the same
	// ones. Absent: a key that lives as long as the process, and is known to no other
	// replica. To rotate, append a key, reload all replicas, move it to the front,
	// reload, and an hour later remove the old one. A key that is removed is void at
	// once, and with it every token that it signed.
	SigningKeys []secret.Secret `yaml:"signing_keys" eg:"[\"file:/etc/sluice/signing-1.pem\"]"`

	// What signing keys are sealed with in the store: 32 random bytes in base64, as
	// `openssl rand -base64 32` makes them; the same for all replicas. Required with
	// Postgres. With SQLite and none given, one is made beside the database.
	SealingKey secret.Secret `yaml:"sealing_key" eg:"\"${SLUICE_SEALING_KEY}\"" restart:"true"`

	// Identity providers of your own whose access tokens are taken (RFC 9068), at
	// most 64. docs/security.md says what they are trusted with.
	Issuers []Issuer `yaml:"issuers" eg:"[{issuer: \"https://login.example.com\", audience: \"https://streams.example.com\", account_claim: account, accounts: [acme]}]"`
}

// Issuer is an identity provider whose tokens are taken.
type Issuer struct {
	// The issuer's identifier, exactly as its tokens' `iss` has it: an https URL
	// without a query (http on loopback only). Each once, and not `origin`.
	Issuer string `yaml:"issuer" required:"true" eg:"https://login.example.com"`

	// What the tokens' `aud` must hold.
	Audience string `yaml:"audience" required:"true" eg:"https://streams.example.com" format:"label"`

	// Where the issuer publishes its keys: an https URL (http on loopback only).
	// Absent: found by discovery (RFC 8414, or OpenID Connect's).
	JWKSURL string `yaml:"jwks_url" eg:"https://login.example.com/keys"`

	// The claim that names the account: a text at the top of the token.
	AccountClaim string `yaml:"account_claim" required:"true" eg:"account" format:"label"`

	// The accounts that this issuer may name, each once. Tokens that name others
	// are refused.
	Accounts []string `yaml:"accounts" required:"true" eg:"[acme]" list:"nonempty"`
}

// Tails is the section for live reads.
type Tails struct {
	// How long a `live=sse` read may be silent before a comment is sent, which
	// clients pass over: it keeps middleboxes from cutting the read, and finds clients
	// that are gone. Below the shortest idle limit on the way. 0 sends none.
	Heartbeat time.Duration `yaml:"heartbeat" default:"15s" eg:"15s" min:"0s" max:"1h"`

	// How old a live read may get: it is ended between two events, with a hint when to
	// come again, and its reader resumes where it was. The last tenth of the time is
	// chance's, so that reads which began together do not end together. 0: any age.
	MaxAge time.Duration `yaml:"max_age" default:"0s" eg:"1h" min:"0s" max:"8760h"`
}

// Usage is the section for metering. Use is metered where there is a store, or an export.
type Usage struct {
	// A file that batches of usage are written to, one line of JSON each, to be billed
	// from (docs/usage.md); absent: none. It is this replica's own, and made where it is
	// missing, in a folder that is there. A path that does not begin with `/` is one from
	// the folder in which `serve` was started. What rotates it may rename it at any time.
	Export string `yaml:"export" eg:"/var/lib/sluice/usage.jsonl" format:"label" restart:"true"`

	// How often what was counted is written, and at each hour's end. A process that is
	// killed loses so much at the most.
	Flush time.Duration `yaml:"flush" default:"30s" eg:"30s" min:"1s" max:"10m" restart:"true"`

	// The unit of appends: one that is larger counts as several chunks, and each as one at
	// least.
	ChunkBytes Bytes `yaml:"chunk_bytes" default:"64KiB" eg:"64KiB" min:"1" max:"32MiB" restart:"true"`

	// How many sums of reads of one stream are kept apart in a batch, in the order in which
	// they are first needed; the rest is one sum. A stream that is read and tailed needs
	// two, one of each class. 0: none.
	StreamReads int `yaml:"stream_reads" default:"0" eg:"1000" min:"0" max:"10000" restart:"true"`

	// How long the store keeps batches, which have to be billed from within it.
	KeepBatches time.Duration `yaml:"keep_batches" default:"840h" eg:"840h" min:"24h" max:"87600h" restart:"true"`

	// How long the store keeps the sums of each hour, which owners see.
	KeepHours time.Duration `yaml:"keep_hours" default:"9600h" eg:"9600h" min:"24h" max:"87600h" restart:"true"`
}

// CORS is the section for pages of other origins (design §9).
type CORS struct {
	// Origins whose pages may use this gateway, each once and as browsers send it:
	// scheme, host, and the port where it is not the scheme's own; lower case and
	// whole, for there are no patterns. `*`, alone, is all of them. Empty: none, and
	// no header of CORS is sent. Cookies are never allowed; a page sends a token.
	Origins []string `yaml:"origins" eg:"[\"https://app.example.com\"]" format:"page"`
}

// Streams are the rules for all streams.
type Streams struct {
	// Who creates and deletes streams. `managed`: the Management API and this file
	// alone, so that a client's `PUT` and `DELETE` of a stream itself are refused
	// with 403. `protocol`: clients too, at the stream's own URL and with any key
	// that writes and reaches the name, as the Durable Streams protocol has it; that
	// needs a `store`.
	Lifecycle string `yaml:"lifecycle" default:"managed" eg:"managed" enum:"managed|protocol"`
}

// Log is the section for the log.
type Log struct {
	// The least severe lines that are written. `debug` is for finding faults: it
	// writes much more, but never a credential.
	Level string `yaml:"level" default:"info" eg:"info" enum:"debug|info|warn|error"`

	// The share of requests whose line is written, 0 to 1, of those that went well: answered
	// 2xx, whole, within a second. All others always have their line, and so has every
	// tail of events. A line that stands for several has `sampled`, this share.
	Sample float64 `yaml:"sample" default:"1" eg:"0.1" min:"0" max:"1"`
}

// Account is a declared account.
type Account struct {
	// The account's id, which is the first part of its streams' URLs and its
	// bucket at Ursula: 4 to 64 of `a-z 0-9 _ -`, not `snapshots`, not `console`,
	// not beginning with `__`. Each id once. Never give an id to somebody else:
	// the data of the former owner is behind it.
	ID string `yaml:"id" required:"true" eg:"acme"`

	// `active`; `unpaid`: requests are answered 402; `revoked`: 403.
	Status string `yaml:"status" default:"active" eg:"active" enum:"active|unpaid|revoked"`

	// The account's own limits. A key left out takes `limits.default`.
	Limits AccountLimits `yaml:"limits"`

	// The declared streams; those that Ursula lacks are created.
	Streams []Stream `yaml:"streams" eg:"[{name: events}]"`

	// The declared API keys.
	Keys []Key `yaml:"keys" eg:"[{name: ci, digest: \"sha256:…\"}]"`
}

// Stream is a declared stream.
type Stream struct {
	// What clients call the stream: 1 to 100 of `A-Z a-z 0-9 . _ ~ -`, first a
	// letter or a digit, no `..`; each name once in an account.
	Name string `yaml:"name" required:"true" eg:"events"`

	// The media type that the stream is created with. A stream that exists
	// keeps its own.
	ContentType string `yaml:"content_type" default:"application/octet-stream" eg:"application/json" format:"media"`

	// Whether anybody may read the stream without a key. Copies of what was
	// public may stay in caches for 300 s after it is made private.
	Public bool `yaml:"public" default:"false" eg:"true"`
}

// Key is a declared API key. The file holds its digest only.
type Key struct {
	// A name for people, each once in an account: 1 to 100 bytes, no control
	// characters, no space at either end.
	Name string `yaml:"name" required:"true" eg:"ci" format:"label"`

	// `sha256:` and the lower-case hex of the SHA-256 of the whole key, as
	// `sluice api-key generate` prints it. Never the key itself. Each digest once
	// in the file.
	Digest string `yaml:"digest" required:"true" eg:"\"sha256:…\"" format:"hidden"`

	// `write`, which includes reading, or `read`.
	Access string `yaml:"access" default:"write" eg:"read" enum:"read|write"`

	// The streams that the key reaches: names, or a prefix with one `*` at its
	// end. Absent: all streams of the account. `[]` is refused; it never means
	// all. A stream that is not declared may be named.
	Streams []string `yaml:"streams" eg:"[events, \"logs.*\"]" list:"nonempty"`

	// `user`, or `agent`, whose key is good for the token exchange only and is
	// refused with 401 when used directly.
	ActsAs string `yaml:"acts_as" default:"user" eg:"agent" enum:"user|agent"`

	// When the key stops working, as an RFC 3339 time. Absent: never.
	ExpiresAt time.Time `yaml:"expires_at" eg:"2027-06-01T00:00:00Z"`
}
