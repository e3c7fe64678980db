package ratelimit

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// The kinds of Redis that Servers can name.
const (
	ModeSingle   = "single"
	ModeSentinel = "sentinel"
	ModeCluster  = "cluster"
)

// ErrServers says that Servers contradict themselves or do not parse. Its text
// names the field and repeats nothing of it, since an address may hold a password.
var ErrServers = errors.New("servers of Redis")

// Servers say where Redis is.
type Servers struct {
	// URL is redis://user:password@host:port/database, rediss:// for TLS, or
	// unix:///path?db=N. Its user, password, database and TLS hold for all
	// addresses; the database must be 0 in a Cluster. With Sentinel,
	// ?sentinel_username= and ?sentinel_password= say who asks the sentinels.
	// ?skip_verify=true takes any certificate.
	URL string
	// Addrs are further host:port: of nodes of the Cluster, or of sentinels. One of
	// them is enough, all of them are better. The host of URL, if any, is one more.
	Addrs []string
	// MasterName is what the sentinels call the master.
	MasterName string
	// Mode is one of the Mode constants. Empty is sentinel where there is a
	// MasterName, cluster where there are several addresses, else single.
	Mode string
}

// Validate says whether a client can be made of the servers; the error is
// ErrServers.
func (s Servers) Validate() error {
	_, err := s.options()
	return err
}

func (s Servers) equal(o Servers) bool {
	return s.URL == o.URL && slices.Equal(s.Addrs, o.Addrs) && s.MasterName == o.MasterName && s.Mode == o.Mode
}

// dialOptions are Servers, read.
type dialOptions struct {
	base             redis.Options // credentials, database, TLS, and the address of a single server
	addrs            []string
	mode, master     string
	sentinelUsername string
	sentinelPassword string
}

func (s Servers) options() (dialOptions, error) {
	o := dialOptions{mode: s.Mode, master: s.MasterName}
	if err := o.readURL(s.URL); err != nil {
		return o, err
	}
	for _, addr := range append(slices.Clone(o.addrs), s.Addrs...) {
		if addr == "" {
			return o, fmt.Errorf("%w: an address is empty", ErrServers)
		}
	}
	o.addrs = slices.Compact(append(o.addrs, s.Addrs...))
	if o.mode == "" {
		switch {
		case o.master != "":
			o.mode = ModeSentinel
		case len(o.addrs) > 1:
			o.mode = ModeCluster
		default:
			o.mode = ModeSingle
		}
	}
	return o, o.check()
}

func (o *dialOptions) readURL(text string) error {
	if text == "" {
		return nil
	}
	// Neither error may be shown: both repeat the address.
	u, err := url.Parse(text)
	if err != nil {
		return fmt.Errorf("%w: the URL does not parse", ErrServers)
	}
	query := u.Query()
	o.sentinelUsername, o.sentinelPassword = query.Get("sentinel_username"), query.Get("sentinel_password")
	for _, known := range []string{"sentinel_username", "sentinel_password"} {
		query.Del(known)
	}
	for name := range query {
		if name != "db" && name != "skip_verify" {
			return fmt.Errorf("%w: the URL has an option that is not known here", ErrServers)
		}
	}
	u.RawQuery = query.Encode()
	parsed, err := redis.ParseURL(u.String())
	if err != nil {
		return fmt.Errorf("%w: the URL must be redis://, rediss:// or unix://, with a number as its database", ErrServers)
	}
	o.base = redis.Options{
		Network: parsed.Network, Username: parsed.Username, Password: parsed.Password, DB: parsed.DB, TLSConfig: parsed.TLSConfig,
	}
	o.addrs = []string{parsed.Addr}
	return nil
}

func (o *dialOptions) check() error {
	switch {
	case len(o.addrs) == 0:
		return fmt.Errorf("%w: no address", ErrServers)
	case o.mode != ModeSingle && o.mode != ModeSentinel && o.mode != ModeCluster:
		return fmt.Errorf("%w: the mode must be %s, %s or %s", ErrServers, ModeSingle, ModeSentinel, ModeCluster)
	case (o.mode == ModeSentinel) != (o.master != ""):
		return fmt.Errorf("%w: a master's name and Sentinel need each other", ErrServers)
	case o.mode == ModeSingle && len(o.addrs) > 1:
		return fmt.Errorf("%w: a single server has one address", ErrServers)
	case o.mode == ModeCluster && o.base.DB != 0:
		return fmt.Errorf("%w: a Cluster has database 0 only", ErrServers)
	case o.mode != ModeSingle && o.base.Network == "unix":
		return fmt.Errorf("%w: only a single server can be at a socket", ErrServers)
	}
	return nil
}

// The client's own bounds. What waits for an answer has a shorter deadline in its
// context.
const (
	dialTimeout = 500 * time.Millisecond
	ioTimeout   = 500 * time.Millisecond
	// connections to each server: one for the slots, one for the rates, and room for
	// those that are being replaced.
	connections = 4
)

// client makes a client, which connects when it is first used. It repeats nothing
// by itself: what a call did that got no answer is for this package to find out
// (L07). It follows a Cluster's redirects.
//
// A client whose calls fail is closed and replaced by a new one, always: so no
// state of its pool or of its picture of a Cluster outlives a failure. Known of
// version 9.23: the picture is kept for 60 s when a master refuses connections
// (redis/go-redis#3979), a pool whose dials failed answers with the old error for
// up to a second more, and a reply that says READONLY drops one connection only.
func (o dialOptions) client() redis.UniversalClient {
	// The library writes to standard error by itself, for all clients of the process.
	// What it would say is in the errors of the calls.
	redis.SetLogger(silent{})
	switch o.mode {
	case ModeCluster:
		return redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: o.addrs, Username: o.base.Username, Password: o.base.Password, TLSConfig: o.anyHost(),
			Protocol: 2, DisableIdentity: true, MaintNotificationsConfig: noMaintenance(),
			MaxRetries: -1, MaxRedirects: 3, DisableRoutingPolicies: true, ContextTimeoutEnabled: true,
			DialTimeout: dialTimeout, DialerRetries: 1, ReadTimeout: ioTimeout, WriteTimeout: ioTimeout, PoolTimeout: ioTimeout,
			PoolSize: connections, PipelinePoolSize: -1,
		})
	case ModeSentinel:
		return redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: o.master, SentinelAddrs: o.addrs,
			SentinelUsername: o.sentinelUsername, SentinelPassword: o.sentinelPassword,
			Username: o.base.Username, Password: o.base.Password, DB: o.base.DB, TLSConfig: o.anyHost(),
			Protocol: 2, DisableIdentity: true,
			MaxRetries: -1, ContextTimeoutEnabled: true,
			DialTimeout: dialTimeout, DialerRetries: 1, ReadTimeout: ioTimeout, WriteTimeout: ioTimeout, PoolTimeout: ioTimeout,
			PoolSize: connections, PipelinePoolSize: -1,
		})
	default:
		return redis.NewClient(&redis.Options{
			Network: o.base.Network, Addr: o.addrs[0],
			Username: o.base.Username, Password: o.base.Password, DB: o.base.DB, TLSConfig: o.base.TLSConfig.Clone(),
			Protocol: 2, DisableIdentity: true, MaintNotificationsConfig: noMaintenance(),
			MaxRetries: -1, ContextTimeoutEnabled: true,
			DialTimeout: dialTimeout, DialerRetries: 1, ReadTimeout: ioTimeout, WriteTimeout: ioTimeout, PoolTimeout: ioTimeout,
			PoolSize: connections, PipelinePoolSize: -1,
		})
	}
}

// silent is a logger of the client's library.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// noMaintenance keeps the client from asking each server for notifications of
// Redis Enterprise, and from the goroutine that it keeps for them.
func noMaintenance() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

// anyHost is the TLS configuration for servers that others name: each is held to
// its own name, not to that of the URL.
func (o dialOptions) anyHost() *tls.Config {
	c := o.base.TLSConfig.Clone()
	if c != nil {
		c.ServerName = ""
	}
	return c
}
