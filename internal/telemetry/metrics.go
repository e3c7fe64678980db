package telemetry

import (
	"maps"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the gateway's collectors. All methods are safe for concurrent use.
type Metrics struct {
	requests  *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	refusals  *prometheus.CounterVec
	ends      *prometheus.CounterVec
	drains    *prometheus.CounterVec
	upstream  *prometheus.CounterVec
	heads     *prometheus.HistogramVec
	nodeUp    *prometheus.GaugeVec
	ejections *prometheus.CounterVec
	redirects prometheus.Counter
	retries   prometheus.Counter
	in, out   prometheus.Counter
	headers   *prometheus.CounterVec
	panics    prometheus.Counter
	beats     prometheus.Counter
	unlogged  prometheus.Counter
	reloads   *prometheus.CounterVec
	reloadOK  prometheus.Gauge
	reloadAt  prometheus.Gauge
	collected []prometheus.Collector

	mu    sync.Mutex // guards nodes
	nodes map[string]bool
}

// Description is one row of docs/metrics.md.
type Description struct {
	Name, Type, Help string
	Labels           []string
}

// Descriptions lists the metrics in the order of the page; NewMetrics makes them from
// this list, so the page cannot drift.
func Descriptions() []Description { return append(ofRequests(), ofParts()...) }

// ofRequests are about what clients ask for, and what becomes of it.
func ofRequests() []Description {
	return []Description{
		{"sluice_requests_total", "counter", "Requests answered, by operation and HTTP status; 499 stands for a client that left before its answer.", []string{"operation", "status"}},
		{"sluice_request_duration_seconds", "histogram", "Time from a request's head to the end of its answer, tails left out.", []string{"operation"}},
		{"sluice_refusals_total", "counter", "Answers in the gateway's own words, by code (docs/errors.md).", []string{"code"}},
		{"sluice_answers_ended_total", "counter", "How answers ended: whole, client_closed, credential (a tail whose credential ended), stalled (a client that stopped reading, or reads next to nothing), max_age (a tail older than tails.max_age), drain (a tail ended at a stop), cut (the node broke off), shutdown (cut at the end of a drain), panic.", []string{"end"}},
		{"sluice_refused_bodies_total", "counter", "Bodies of refused requests: read (dropped whole), cut (given up), unread.", []string{"fate"}},
		{"sluice_upstream_exchanges_total", "counter", "Exchanges with a node, by node and the answer's class or why there was none.", []string{"node", "outcome"}},
		{"sluice_upstream_head_seconds", "histogram", "Time from the beginning of an exchange with a node to the head of its answer or to its end without one, by node and outcome; long-polls, which ask the node to wait, left out.", []string{"node", "outcome"}},
		{"sluice_upstream_redirects_total", "counter", "Times that a request of a client went on to another node, since a node sent it there.", nil},
		{"sluice_upstream_retries_total", "counter", "Times that a request of a client was sent once more, since a node did not take it, did not answer it, or was no leader any more.", nil},
		{"sluice_upstream_groups_led", "gauge", "Raft groups that a node says it leads, by what it said last; of several nodes only. The sum over all nodes is the cluster's groups, or some have no leader.", []string{"node"}},
		{"sluice_upstream_node_up", "gauge", "1 while the node answers, 0 while it is ejected.", []string{"node"}},
		{"sluice_upstream_ejections_total", "counter", "Ejections of a node, by why: stopped (takes no connections), silent (does not answer).", []string{"node", "why"}},
		{"sluice_bytes_total", "counter", "Body bytes, in from clients and out to them.", []string{"direction"}},
		{"sluice_panics_total", "counter", "Faults of the gateway caught while it served a request.", nil},
		{"sluice_heartbeats_total", "counter", "Comments sent on silent tails (tails.heartbeat); their bytes are in no other count.", nil},
		{"sluice_config_reloads_total", "counter", "Reloads of the configuration, by result: ok, refused.", []string{"result"}},
		{"sluice_config_last_reload_ok", "gauge", "0 when the last reload was refused and the old configuration stayed, else 1.", nil},
		{"sluice_config_last_reload_timestamp_seconds", "gauge", "Unix time since which the configuration is in force.", nil},
		{"sluice_open_tails", "gauge", "Live reads open now.", nil},
		{"sluice_open_tails_by_kind", "gauge", "Live reads open now, by kind: sse, long-poll.", []string{"kind"}},
		{"sluice_tails_largest_share", "gauge", "Of its limit of open tails, the share that the account which is nearest to it has open on this replica; 1 is all. The log says whose.", nil},
		{"sluice_open_uploads", "gauge", "Bodies over 1 MiB that are being read now.", nil},
	}
}

// ofParts are about what the gateway is made of, and what it stands on.
func ofParts() []Description {
	return []Description{
		{"sluice_redis_degraded", "gauge", "1 while Redis is configured and limits are counted by this replica alone.", nil},
		{"sluice_replicas", "gauge", "Replicas that share the counts of limits, this one included, as last known.", nil},
		{"sluice_rate_subjects", "gauge", "Accounts (and publics of accounts) whose rate is being counted.", nil},
		{"sluice_body_budget_bytes", "gauge", "Bytes of limits.body_budget that are taken now.", nil},
		{"sluice_token_cache_entries", "gauge", "Verified tokens that are remembered.", nil},
		{"sluice_token_cache_capacity", "gauge", "How many verified tokens are remembered at most.", nil},
		{"sluice_tokens_seen_total", "counter", "Tokens that had been verified before.", nil},
		{"sluice_tokens_new_total", "counter", "Tokens that had not, good ones and bad ones.", nil},
		{"sluice_issuers_failing", "gauge", "Issuers (auth.issuers) whose keys could not be fetched the last time; the last good ones serve.", nil},
		{"sluice_issuers_without_keys", "gauge", "Issuers of which no key is known: their tokens are answered 503.", nil},
		{"sluice_failure_subjects", "gauge", "Client addresses and expired credentials whose failures are being counted.", nil},
		{"sluice_store_lost", "gauge", "1 while the store is out of reach: what is known goes on to be used for store.stale_for.", nil},
		{"sluice_store_read_timestamp_seconds", "gauge", "Unix time at which the store's log of changes was read last.", nil},
		{"sluice_store_revision", "gauge", "The newest change of the store that is in force here; -1 before the store was read.", nil},
		{"sluice_store_keys", "gauge", "API keys of the store that are remembered.", nil},
		{"sluice_store_accounts", "gauge", "Accounts of the store that are remembered.", nil},
		{"sluice_store_streams", "gauge", "Streams of the store that are remembered.", nil},
		{"sluice_store_unknown", "gauge", "Keys, accounts and streams that are remembered not to exist, for a second.", nil},
		{"sluice_streams_retried", "gauge", "Streams whose making or deleting at the nodes has failed and is being tried again, by this replica.", nil},
		{"sluice_usage_store_pending", "gauge", "Batches of usage that are not in the store yet.", nil},
		{"sluice_usage_store_failures_total", "counter", "Tries to write usage to the store that failed; each is repeated.", nil},
		{"sluice_usage_store_written_timestamp_seconds", "gauge", "Unix time at which usage was written to the store last; 0 = never.", nil},
		{"sluice_usage_export_pending", "gauge", "Batches of usage that are not in the export file (usage.export) yet.", nil},
		{"sluice_usage_export_failures_total", "counter", "Tries to write usage to the export file that failed; each is repeated.", nil},
		{"sluice_usage_export_written_timestamp_seconds", "gauge", "Unix time at which usage was written to the export file last; 0 = never.", nil},
		{"sluice_usage_merged_total", "counter", "Batches of usage that became a part of the one before, since too many were pending. Nothing of them is lost.", nil},
		{"sluice_connections_refused_total", "counter", "Connections closed unread, since their address had server.connections_per_address open.", nil},
		{"sluice_proxy_headers_total", "counter", "Connections by what became of their PROXY header (proxy_protocol), by outcome. Those of trusted_proxies that go on: client (it names one), balancer (it names nobody: a health check), none (left out, where it is optional). Closed: untrusted (the peer is none of trusted_proxies), missing (there was none), malformed, late (it did not come within 10 s), crowded (4096 of the peer's connections have none yet).", []string{"outcome"}},
		{"sluice_client_addresses", "gauge", "Client addresses with connections open.", nil},
		{"sluice_certificate_expires_timestamp_seconds", "gauge", "Unix time at which the certificate in use expires, by the names that the gateway has certificates for; 0 while there is none.", []string{"domain"}},
		{"sluice_certificate_failing", "gauge", "1 while it is time for another certificate, which could not be had: the one before stays in use.", []string{"domain"}},
		{"sluice_open_connections", "gauge", "Connections of clients open now, those of trusted_proxies included.", nil},
		{"sluice_connections_bound", "gauge", "How many connections clients may have open at one time (server.connections).", nil},
		{"sluice_connections_turned_away_total", "counter", "Connections answered 503, or closed, since sluice_connections_bound were open.", nil},
		{"sluice_admin_connections_turned_away_total", "counter", "Connections to the admin listener closed, since as many requests were under way as it may have.", nil},
		{"sluice_accept_failures_total", "counter", "Times that a connection could not be taken for want of descriptors or memory, on any listener; it waits meanwhile.", nil},
		{"sluice_upstream_connections", "gauge", "Connections to nodes open now for requests, those kept for the next one included.", nil},
		{"sluice_upstream_connections_bound", "gauge", "How many connections to nodes requests may have open at one time.", nil},
		{"sluice_upstream_connections_short_total", "counter", "Times that a request was not sent, or not once more, since sluice_upstream_connections_bound were open or the process had no descriptor left: 503, and no node's fault.", nil},
		{"sluice_trace_spans_sent_total", "counter", "Spans that trace.endpoint has taken.", nil},
		{"sluice_trace_spans_dropped_total", "counter", "Spans that were lost: too many waited, or trace.endpoint took them not.", nil},
		{"sluice_trace_failing", "gauge", "1 while trace.endpoint takes no spans.", nil},
		{"sluice_log_lines_sampled_out_total", "counter", "Lines of requests that were not written for log.sample's sake.", nil},
		{"sluice_log_lines_dropped_total", "counter", "Log lines lost because whoever reads the log did not keep up, or the disk was full.", nil},
		{"sluice_ready", "gauge", "1 when the gateway is ready for traffic.", nil},
		{"sluice_ready_part", "gauge", "1 for a part that is ready, 0 for one that keeps the gateway from being so, as /readyz names them.", []string{"part"}},
		{"sluice_build_info", "gauge", "1; the labels say which version runs, and which Go it was built with.", []string{"version", "goversion"}},
	}
}

// NewMetrics registers the collectors with r.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{}
	m.requests = m.counter("sluice_requests_total")
	m.duration = m.histogram("sluice_request_duration_seconds", .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30)
	m.refusals = m.counter("sluice_refusals_total")
	m.ends = m.counter("sluice_answers_ended_total")
	m.drains = m.counter("sluice_refused_bodies_total")
	m.upstream = m.counter("sluice_upstream_exchanges_total")
	// A small read takes a node under a millisecond; 5 s is when it is given up.
	m.heads = m.histogram("sluice_upstream_head_seconds", .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5, 10)
	m.redirects = m.counter("sluice_upstream_redirects_total").WithLabelValues()
	m.retries = m.counter("sluice_upstream_retries_total").WithLabelValues()
	m.nodeUp = m.gauges("sluice_upstream_node_up")
	m.ejections = m.counter("sluice_upstream_ejections_total")
	bytes := m.counter("sluice_bytes_total")
	m.in, m.out = bytes.WithLabelValues("in"), bytes.WithLabelValues("out")
	m.headers = m.counter("sluice_proxy_headers_total")
	m.panics = m.counter("sluice_panics_total").WithLabelValues()
	m.beats = m.counter("sluice_heartbeats_total").WithLabelValues()
	m.unlogged = m.counter("sluice_log_lines_sampled_out_total").WithLabelValues()
	m.reloads = m.counter("sluice_config_reloads_total")
	m.reloadOK = m.gauges("sluice_config_last_reload_ok").WithLabelValues()
	m.reloadAt = m.gauges("sluice_config_last_reload_timestamp_seconds").WithLabelValues()
	for _, c := range m.collected {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func describe(name string) Description {
	for _, d := range Descriptions() {
		if d.Name == name {
			return d
		}
	}
	return Description{Name: name}
}

func (m *Metrics) counter(name string) *prometheus.CounterVec {
	d := describe(name)
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: d.Name, Help: d.Help}, d.Labels)
	m.collected = append(m.collected, c)
	return c
}

func (m *Metrics) histogram(name string, buckets ...float64) *prometheus.HistogramVec {
	d := describe(name)
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: d.Name, Help: d.Help, Buckets: buckets,
	}, d.Labels)
	m.collected = append(m.collected, h)
	return h
}

func (m *Metrics) gauges(name string) *prometheus.GaugeVec {
	d := describe(name)
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: d.Name, Help: d.Help}, d.Labels)
	m.collected = append(m.collected, g)
	return g
}

// GaugeFunc registers a gauge of the list that is read when it is scraped.
func GaugeFunc(r prometheus.Registerer, name string, read func() float64) error {
	d := describe(name)
	return r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: d.Name, Help: d.Help}, read))
}

// GaugesFunc registers gauges of the list that are read when they are scraped, by the value
// of their one label. There have to be few values.
func GaugesFunc(r prometheus.Registerer, name string, read func() map[string]float64) error {
	d := describe(name)
	return r.Register(&gaugesFunc{prometheus.NewDesc(d.Name, d.Help, d.Labels, nil), read})
}

type gaugesFunc struct {
	about *prometheus.Desc
	read  func() map[string]float64
}

// Describe implements prometheus.Collector.
func (g *gaugesFunc) Describe(to chan<- *prometheus.Desc) { to <- g.about }

// Collect implements prometheus.Collector.
func (g *gaugesFunc) Collect(to chan<- prometheus.Metric) {
	for label, value := range g.read() {
		to <- prometheus.MustNewConstMetric(g.about, prometheus.GaugeValue, value, label)
	}
}

// CounterFunc registers a counter of the list that is read when it is scraped.
func CounterFunc(r prometheus.Registerer, name string, read func() float64) error {
	d := describe(name)
	return r.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: d.Name, Help: d.Help}, read))
}

// BuildInfo registers what says which version runs.
func BuildInfo(r prometheus.Registerer, version string) error {
	d := describe("sluice_build_info")
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: d.Name, Help: d.Help}, d.Labels)
	g.WithLabelValues(version, runtime.Version()).Set(1)
	return r.Register(g)
}

// Request counts one answered request; tail leaves its duration out.
func (m *Metrics) Request(operation string, status int, d time.Duration, tail bool) {
	m.requests.WithLabelValues(operation, strconv.Itoa(status)).Inc()
	if !tail {
		m.duration.WithLabelValues(operation).Observe(d.Seconds())
	}
}

// Refused counts an answer of our own.
func (m *Metrics) Refused(code string) { m.refusals.WithLabelValues(code).Inc() }

// Ended counts how an answer ended.
func (m *Metrics) Ended(end string) { m.ends.WithLabelValues(end).Inc() }

// Drained counts what became of a refused request's body.
func (m *Metrics) Drained(fate string) { m.drains.WithLabelValues(fate).Inc() }

// Exchanged counts an exchange with a node, and how long it took but where that is
// below 0.
func (m *Metrics) Exchanged(node, outcome string, took time.Duration) {
	m.upstream.WithLabelValues(node, outcome).Inc()
	if took >= 0 {
		m.heads.WithLabelValues(node, outcome).Observe(took.Seconds())
	}
}

// Went counts how often a request went on to another node, and was sent once more.
func (m *Metrics) Went(redirects, retries int) {
	if redirects > 0 {
		m.redirects.Add(float64(redirects))
	}
	if retries > 0 {
		m.retries.Add(float64(retries))
	}
}

// Unlogged counts a request without a line in the log.
func (m *Metrics) Unlogged() { m.unlogged.Inc() }

// Node notes a node's state: "up", or why it was ejected.
func (m *Metrics) Node(node, state string) {
	if state == "up" {
		m.nodeUp.WithLabelValues(node).Set(1)
		return
	}
	m.nodeUp.WithLabelValues(node).Set(0)
	m.ejections.WithLabelValues(node, state).Inc()
}

// Nodes makes nodes those that have series: configured ones are there before
// anything befalls them, others not any more, so that reloads do not pile them up.
func (m *Metrics) Nodes(nodes map[string]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for gone := range m.nodes {
		if _, stays := nodes[gone]; !stays {
			label := prometheus.Labels{"node": gone}
			m.upstream.DeletePartialMatch(label)
			m.heads.DeletePartialMatch(label)
			m.ejections.DeletePartialMatch(label)
		}
	}
	m.nodes = maps.Clone(nodes)
	m.nodeUp.Reset()
	for node, up := range nodes {
		value := 0.0
		if up {
			value = 1
		}
		m.nodeUp.WithLabelValues(node).Set(value)
	}
}

// Bytes counts body bytes of one request and its answer.
func (m *Metrics) Bytes(in, out int64) {
	m.in.Add(float64(in))
	m.out.Add(float64(out))
}

// Heartbeat counts a comment on a silent tail.
func (m *Metrics) Heartbeat() { m.beats.Inc() }

// Header counts a connection by what became of its PROXY header.
func (m *Metrics) Header(outcome string) { m.headers.WithLabelValues(outcome).Inc() }

// Panicked counts a fault of the gateway's own.
func (m *Metrics) Panicked() { m.panics.Inc() }

// Loaded notes the configuration of the start, which is in force like that of a
// reload, and brings the counters that an alert may look at into being.
func (m *Metrics) Loaded(at time.Time) {
	m.reloads.WithLabelValues("ok")
	m.reloads.WithLabelValues("refused")
	m.reloadOK.Set(1)
	m.reloadAt.Set(float64(at.UnixNano()) / 1e9)
}

// Reloaded counts a reload and says whether it took effect.
func (m *Metrics) Reloaded(ok bool, at time.Time) {
	if !ok {
		m.reloads.WithLabelValues("refused").Inc()
		m.reloadOK.Set(0)
		return
	}
	m.reloads.WithLabelValues("ok").Inc()
	m.reloadOK.Set(1)
	m.reloadAt.Set(float64(at.UnixNano()) / 1e9)
}
