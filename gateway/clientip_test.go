package gateway

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sluice/gateway/proxyproto"
)

// L11: one host was many: limits by address were passed by writing it in another
// way. All spellings of an address are one.
func TestAddressSpellings(t *testing.T) {
	tests := []struct {
		want      string // "" = no address
		spellings []string
	}{
		{"1.2.3.4", []string{"1.2.3.4", "1.2.3.4:80", "::ffff:1.2.3.4", "[::ffff:1.2.3.4]:80", "[::ffff:1.2.3.4]", "::FFFF:102:304", "0:0:0:0:0:ffff:1.2.3.4", "::ffff:1.2.3.4%eth0"}},
		{"2001:db8::1", []string{
			"2001:db8::1", "2001:DB8::1", "2001:0db8:0:0:0:0:0:1", "2001:db8:0000:0000:0000:0000:0000:0001", "[2001:db8::1]", "[2001:db8::1]:443",
			"2001:db8::1%eth0", "[2001:db8::1%25eth0]:443", "[2001:db8::1%eth0]", "2001:db8::0.0.0.1",
		}},
		{"", []string{
			"", " ", "unknown", "_hidden", "1.2.3", "1.2.3.4.5", "01.2.3.4", "0x1.2.3.4", "16909060", "1.2.3.256", "1.2.3.4:", "1.2.3.4:x", "1.2.3.4:99999",
			"[1.2.3.4", "2001:db8:::1", "2001:db8::g", "example.com", "1.2.3.4 evil", "1.2.3.4\x00", "１.2.3.4", strings.Repeat("1", 10_000),
		}},
	}
	for _, tt := range tests {
		for _, s := range tt.spellings {
			got := addressOf(s)
			if tt.want == "" {
				if got.IsValid() {
					t.Errorf("%q is taken for %s", s, got)
				}
				continue
			}
			if got.String() != tt.want {
				t.Errorf("%q is %s, want %s", s, got, tt.want)
			}
		}
	}
}

// H08: a client's own word about its address was believed.
func TestClientAddress(t *testing.T) {
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:ff::/48"), netip.MustParsePrefix("127.0.0.1/32")}
	hops := func(n int, each string) string { return strings.TrimSuffix(strings.Repeat(each+", ", n), ", ") }
	tests := []struct {
		name, peer string
		trusted    []netip.Prefix
		xff, fwd   []string
		want       string
	}{
		{"nobody is trusted", "10.0.0.1:5", nil, []string{"1.1.1.1"}, []string{"for=1.1.1.1"}, "10.0.0.1"},
		{"peer is not trusted", "9.9.9.9:5", proxies, []string{"1.1.1.1"}, nil, "9.9.9.9"},
		{"no header", "10.0.0.1:5", proxies, nil, nil, "10.0.0.1"},
		{"one hop", "10.0.0.1:5", proxies, []string{"1.1.1.1"}, nil, "1.1.1.1"},
		{"spoof, real", "10.0.0.1:5", proxies, []string{"1.1.1.1, 2.2.2.2"}, nil, "2.2.2.2"},
		{"two lines, spoof first", "10.0.0.1:5", proxies, []string{"1.1.1.1", "2.2.2.2"}, nil, "2.2.2.2"},
		{"proxies in front are passed over", "10.0.0.1:5", proxies, []string{"1.1.1.1, 2.2.2.2, 10.1.1.1, 10.2.2.2"}, nil, "2.2.2.2"},
		{"over two lines", "10.0.0.1:5", proxies, []string{"1.1.1.1, 2.2.2.2, 10.1.1.1", "10.2.2.2"}, nil, "2.2.2.2"},
		{"proxies only", "10.0.0.1:5", proxies, []string{"10.3.3.3, 10.2.2.2"}, nil, "10.3.3.3"},
		{"mapped peer is the same proxy", "[::ffff:10.0.0.1]:5", proxies, []string{"1.1.1.1"}, nil, "1.1.1.1"},
		{"mapped hop is the same proxy", "10.0.0.1:5", proxies, []string{"1.1.1.1, ::ffff:10.2.2.2"}, nil, "1.1.1.1"},
		{"spelt otherwise", "10.0.0.1:5", proxies, []string{"[2001:0DB8:1:0::1%eth0]:99"}, nil, "2001:db8:1::1"},
		{"no spaces", "10.0.0.1:5", proxies, []string{"1.1.1.1,2.2.2.2,10.1.1.1"}, nil, "2.2.2.2"},
		{"garbage on the right", "10.0.0.1:5", proxies, []string{"1.1.1.1, garbage"}, nil, "10.0.0.1"},
		{"garbage behind a proxy", "10.0.0.1:5", proxies, []string{"1.1.1.1, garbage, 10.2.2.2"}, nil, "10.2.2.2"},
		{"empty element", "10.0.0.1:5", proxies, []string{"1.1.1.1,"}, nil, "10.0.0.1"},
		{"empty header", "10.0.0.1:5", proxies, []string{""}, nil, "10.0.0.1"},
		{"a thousand proxies end the walk", "10.0.0.1:5", proxies, []string{"1.1.1.1, " + hops(1000, "10.7.7.7")}, nil, "10.7.7.7"},
		{"a thousand spoofs", "10.0.0.1:5", proxies, []string{hops(1000, "1.1.1.1") + ", 2.2.2.2"}, nil, "2.2.2.2"},
		{"a thousand commas", "10.0.0.1:5", proxies, []string{strings.Repeat(",", 1000)}, nil, "10.0.0.1"},
		{"Forwarded", "10.0.0.1:5", proxies, nil, []string{"for=1.1.1.1;proto=https;by=10.0.0.1"}, "1.1.1.1"},
		{"Forwarded, quoted IPv6, any case, any order", "10.0.0.1:5", proxies, nil, []string{`Proto=https; FOR="[2001:db8:1::1]:4711"`}, "2001:db8:1::1"},
		{"Forwarded, spoof then real", "10.0.0.1:5", proxies, nil, []string{"for=1.1.1.1, for=2.2.2.2", "for=10.2.2.2"}, "2.2.2.2"},
		{"Forwarded, hidden", "10.0.0.1:5", proxies, nil, []string{"for=1.1.1.1, for=_secret"}, "10.0.0.1"},
		{"Forwarded, unknown", "10.0.0.1:5", proxies, nil, []string{"for=unknown"}, "10.0.0.1"},
		{"Forwarded without for", "10.0.0.1:5", proxies, nil, []string{"proto=https"}, "10.0.0.1"},
		{"Forwarded, comma in quotes", "10.0.0.1:5", proxies, nil, []string{`for="1.1.1.1, 2.2.2.2"`}, "10.0.0.1"},
		{"both agree", "10.0.0.1:5", proxies, []string{"1.1.1.1"}, []string{"for=1.1.1.1"}, "1.1.1.1"},
		{"both agree in other spellings", "10.0.0.1:5", proxies, []string{"::ffff:1.1.1.1"}, []string{`for="1.1.1.1:80"`}, "1.1.1.1"},
		{"both disagree: neither is believed", "10.0.0.1:5", proxies, []string{"1.1.1.1"}, []string{"for=2.2.2.2"}, "10.0.0.1"},
		{"one is garbage: neither is believed", "10.0.0.1:5", proxies, []string{"garbage"}, []string{"for=2.2.2.2"}, "10.0.0.1"},
		{"IPv6 proxy", "[2001:db8:ff::1]:5", proxies, []string{"1.1.1.1"}, nil, "1.1.1.1"},
		{"IPv6 neighbour of the proxies", "[2001:db8:fe::1]:5", proxies, []string{"1.1.1.1"}, nil, "2001:db8:fe::1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &http.Request{RemoteAddr: tt.peer, Header: http.Header{
				"X-Real-Ip": {"6.6.6.6"}, "True-Client-Ip": {"6.6.6.6"}, "X_forwarded_for": {"6.6.6.6"}, "Cf-Connecting-Ip": {"6.6.6.6"},
			}}
			if tt.xff != nil {
				r.Header["X-Forwarded-For"] = tt.xff
			}
			if tt.fwd != nil {
				r.Header["Forwarded"] = tt.fwd
			}
			if got := clientAddress(r, tt.trusted); got.String() != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// H08 through the chain: the log has the client that was found, and the node
// hears of no address at all.
func TestClientAddressInTheLog(t *testing.T) {
	rt := newRetold(t, rigOptions{change: func(o *Options) {
		o.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	}})
	rt.answerWith(http.MethodGet, "200 OK", nil, "x")
	rt.Do(t, http.MethodGet, "/acme/s.priv", key, "", "X-Forwarded-For", "203.0.113.7, ::ffff:203.0.113.9")
	if got := rt.awaitLines(t, 1)[0]["client"]; got != "203.0.113.9" {
		t.Errorf("the log has client %v, want 203.0.113.9", got)
	}
	if seen := rt.node.received(); strings.Contains(seen, "203.0.113") || strings.Contains(seen, "127.0.0.1, ") {
		t.Errorf("the node was told of addresses: %q", seen)
	}
}

// H08: whoever reached a load balancer in a way that its PROXY header cannot name was believed
// as the balancer is. Where the header names nobody the client is the balancer, whatever
// the request says.
func TestClientOfABalancersOwnConnection(t *testing.T) {
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	for _, tc := range []struct {
		local net.Addr
		want  string
	}{
		{&net.TCPAddr{}, "1.1.1.1"},
		{proxyproto.Own{Addr: &net.TCPAddr{}}, "10.0.0.9"},
	} {
		r := &http.Request{RemoteAddr: "10.0.0.9:5", Header: http.Header{"X-Forwarded-For": {"1.1.1.1"}, "Forwarded": {"for=1.1.1.1"}}}
		r = r.WithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, tc.local))
		if got := clientAddress(r, trusted); got.String() != tc.want {
			t.Errorf("%T: got %s, want %s", tc.local, got, tc.want)
		}
	}
}

// A chain of any length costs little: it comes with every request of a stranger
// that is let through a trusted proxy.
func TestLongChainIsCheap(t *testing.T) {
	r := &http.Request{RemoteAddr: "10.0.0.1:5", Header: http.Header{}}
	for i := range 1000 {
		r.Header.Add("X-Forwarded-For", fmt.Sprintf("10.0.%d.%d, 10.1.%d.%d", i/250, i%250, i/250, i%250))
	}
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	quickest := time.Hour
	for range 5 { // the best of five: the machine is shared
		start := time.Now()
		clientAddress(r, trusted)
		quickest = min(quickest, time.Since(start))
	}
	if quickest > time.Millisecond {
		t.Errorf("2 000 hops took %s, want at most 1 ms", quickest)
	}
}
