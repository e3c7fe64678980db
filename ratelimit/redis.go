package ratelimit

import (
	"context"
	"crypto/rand"
	"sync"
	"sync/atomic"
	"time"
)

// Options are what a Redis needs. Zero fields have the defaults that are named.
type Options struct {
	Servers Servers
	// Replica names this process among those that share Redis: [A-Za-z0-9_-], never
	// used by two at one time. Empty: made at random, as it should be.
	Replica string
	// Floor is what each account gets here while Redis is out of reach.
	Floor Floor
	// Replicas is how many share the limits while Redis has not told yet; 1.
	Replicas int
	// Wait is how long a request waits for Redis at most, to take a slot; 50 ms.
	// Rates never wait.
	Wait time.Duration
	// Interval is how often what was admitted is told to Redis; 50 ms. It becomes
	// longer where a pass takes more than half of it.
	Interval time.Duration
	// CallTimeout bounds a call that no request waits for; 250 ms.
	CallTimeout time.Duration
	// Prefix begins all keys; "sluice". Deployments that share a Redis differ in it.
	Prefix string
	// Now is the clock of the rates; nil = time.Now. Slots go by Redis' own clock.
	Now    func() time.Time
	Events Events

	deadAfter, beatEvery time.Duration
}

func (o Options) withDefaults() Options {
	if o.Replica == "" {
		o.Replica = rand.Text()
	}
	if o.Replicas <= 0 {
		o.Replicas = 1
	}
	or := func(d *time.Duration, def time.Duration) {
		if *d <= 0 {
			*d = def
		}
	}
	or(&o.Wait, 50*time.Millisecond)
	or(&o.Interval, 50*time.Millisecond)
	or(&o.CallTimeout, 250*time.Millisecond)
	or(&o.deadAfter, defaultDeadAfter)
	or(&o.beatEvery, defaultBeatEvery)
	if o.Prefix == "" {
		o.Prefix = "sluice"
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Events are told of what happens. Each may be nil. They are called one at a time,
// from goroutines of Redis, and must not block or call Close.
type Events struct {
	// Degraded is called once when the limits stop being shared: cause is ErrSlow,
	// ErrDataLost, ErrServersChanged, an error of the network or what Redis said. It
	// repeats no password.
	Degraded func(cause error)
	// Shared is called once when they are shared again, or for the first time, and
	// says how long they were not.
	Shared func(after time.Duration)
	// Pass is called after each pass with the number of accounts that it told of.
	Pass func(accounts int, took time.Duration)
}

// Redis is the Limiter, the Tails and the Uploads of all replicas that share a
// Redis: a single server, a master under Sentinel, or a Cluster (design §6).
//
// Rates. Each replica decides from its own copy of an account's bucket, without
// asking, and tells Redis every Interval what it admitted; what is left there
// becomes its copy. While one replica alone has an account's traffic, it decides
// exactly as Memory does. Over any window of t seconds all replicas together admit
// at most
//
//	rate·t + burst + replicas × rate × 2 × interval
//
// and for each replica but one, after it has not used the account for as long as
// its bucket takes to fill, its own burst once more (with a burst of 1, that is a
// request each). What was admitted beyond the bucket stays as a debt that all
// replicas see, at most replicas × (burst + rate × 100 ms + 1).
//
// Slots. What Redis grants never exceeds the limit while it keeps its data. Slots
// belong to the replica: those of one that was not heard of for 10 s are free, and
// one that finds Redis without what it had told (a flush, a restart, a failover)
// tells it again, at its next sign of life, every 2 s, at the latest.
//
// Without Redis, from the first failure until it has answered in time again, a
// request is decided at once, by the larger of the floor and the limit split by the
// last known number of replicas.
//
// It runs two goroutines until Close. After that it goes on deciding, as without
// Redis. What is kept in memory of a rate is dropped as by Memory; of slots, what
// is held. All its methods are safe for concurrent use.
type Redis struct {
	o       Options
	scripts scripts
	rates   *sharedRates
	holds   *holds
	names   map[bool]*keys // by whether it is a Cluster

	// link is the session by which requests are decided; nil: alone.
	link  atomic.Pointer[session]
	alone atomic.Pointer[alone]
	// settings guards alone against two writers.
	settings sync.Mutex
	servers  atomic.Pointer[Servers] // wanted

	events  sync.Mutex // one event at a time
	stop    context.CancelFunc
	running sync.WaitGroup
	closing sync.Once
}

// NewRedis connects to Redis and returns when it has, or when the first try has
// failed, after about two seconds at most: without Redis it begins as it goes on
// when Redis is lost (L03). The error is ErrServers.
func NewRedis(o Options) (*Redis, error) {
	if err := o.Servers.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	r := &Redis{
		o: o, scripts: newScripts(), holds: newHolds(),
		names: map[bool]*keys{false: newKeys(o.Prefix, false), true: newKeys(o.Prefix, true)},
	}
	r.rates = newSharedRates(o.Now, o.Interval, r.Replicas)
	r.alone.Store(&alone{floor: o.Floor, replicas: o.Replicas})
	r.servers.Store(&o.Servers)
	var ctx context.Context
	ctx, r.stop = context.WithCancel(context.Background())
	tried := make(chan struct{})
	r.running.Go(func() { r.talk(ctx, tried) })
	r.running.Go(func() { r.reconcile(ctx) })
	<-tried
	return r, nil
}

// Close gives back all slots that this replica holds, in Redis, and ends its
// goroutines and connections: within a second. Calls after the first wait for it
// and do nothing.
func (r *Redis) Close() {
	r.closing.Do(r.stop)
	r.running.Wait()
}

// Reconfigure takes other servers into use, without a restart: slots that are held
// are told to the new ones, and the connections to the old ones are closed. Equal
// servers change nothing. The error is ErrServers, and then nothing has changed.
func (r *Redis) Reconfigure(s Servers) error {
	if err := s.Validate(); err != nil {
		return err
	}
	r.servers.Store(&s)
	r.holds.awake()
	return nil
}

// SetFloor takes another floor into use.
func (r *Redis) SetFloor(f Floor) {
	r.settings.Lock()
	defer r.settings.Unlock()
	r.alone.Store(&alone{floor: f, replicas: r.alone.Load().replicas})
}

func (r *Redis) setReplicas(n int) {
	r.settings.Lock()
	defer r.settings.Unlock()
	if a := r.alone.Load(); a.replicas != n {
		r.alone.Store(&alone{floor: a.floor, replicas: n})
	}
}

// Allow implements Limiter. It allocates only for a subject whose bucket is not in
// memory.
func (r *Redis) Allow(s Subject, rate Rate) Decision {
	if rate.PerSecond <= 0 || rate.Burst <= 0 {
		return Decision{RetryAfter: ClosedRetryAfter}
	}
	if r.link.Load() != nil {
		return r.rates.allow(s, rate, rate, true)
	}
	return r.rates.allow(s, rate, r.alone.Load().rate(rate), false)
}

// Look implements Limiter.
func (r *Redis) Look(s Subject, rate Rate) Decision {
	if rate.PerSecond <= 0 || rate.Burst <= 0 {
		return Decision{RetryAfter: ClosedRetryAfter}
	}
	if r.link.Load() != nil {
		return r.rates.look(s, rate, true)
	}
	return r.rates.look(s, r.alone.Load().rate(rate), false)
}

// Degraded reports whether the limits are this replica's own at the moment.
func (r *Redis) Degraded() bool { return r.link.Load() == nil }

// Replicas is the last known number of replicas, this one included.
func (r *Redis) Replicas() int { return r.alone.Load().replicas }

// Subjects is the number of buckets in memory, for metrics and tests.
func (r *Redis) Subjects() int { return r.rates.subjects() }

// OpenTails is the number of tails open in this replica, for metrics.
func (r *Redis) OpenTails() int { return r.holds.openOf(keyTails) }

// OpenUploads is the number of large bodies under way in this replica, for metrics.
func (r *Redis) OpenUploads() int { return r.holds.openOf(keyUploads) }

// TailsOf implements Tails: of this replica alone.
func (r *Redis) TailsOf(s Subject) int {
	n, _ := r.holds.slotsOf(holdKey{keyTails, s})
	return n
}

// UploadsOf is the number of large bodies that s has under way in this replica, and
// their bytes.
func (r *Redis) UploadsOf(s Subject) (bodies int, bytes int64) {
	return r.holds.slotsOf(holdKey{keyUploads, s})
}

// fail ends the session, and from here on requests are decided without Redis.
func (r *Redis) fail(s *session, err error) {
	r.link.CompareAndSwap(s, nil)
	s.end(err)
	r.holds.end(s)
	r.holds.awake()
}

func (r *Redis) emit(event func(Events)) {
	r.events.Lock()
	defer r.events.Unlock()
	event(r.o.Events)
}

// emitDegraded, emitShared and emitPass call an event, if somebody listens.
func (r *Redis) emitDegraded(cause error) {
	r.emit(func(e Events) {
		if e.Degraded != nil {
			e.Degraded(cause)
		}
	})
}

func (r *Redis) emitShared(after time.Duration) {
	r.emit(func(e Events) {
		if e.Shared != nil {
			e.Shared(after)
		}
	})
}

func (r *Redis) emitPass(accounts int, took time.Duration) {
	r.emit(func(e Events) {
		if e.Pass != nil {
			e.Pass(accounts, took)
		}
	})
}

var (
	_ Limiter = (*Redis)(nil)
	_ Tails   = (*Redis)(nil)
	_ Uploads = (*Redis)(nil)
	_ Lease   = (*sharedLease)(nil)
	_ Upload  = (*sharedUpload)(nil)
)
