package ratelimit

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
)

func TestServers(t *testing.T) {
	type want struct {
		mode, network, user, password, master, sentinelUser, sentinelPassword string
		addrs                                                                 []string
		db                                                                    int
		tls                                                                   bool
	}
	for name, tc := range map[string]struct {
		servers Servers
		want    want
	}{
		"a server": {
			Servers{URL: "redis://10.0.0.9:6379/0"},
			want{mode: ModeSingle, network: "tcp", addrs: []string{"10.0.0.9:6379"}},
		},
		"a server, with everything": {
			Servers{URL: "rediss://joe:pw@r.example.com/3"},
			want{mode: ModeSingle, network: "tcp", user: "joe", password: "pw", addrs: []string{"r.example.com:6379"}, db: 3, tls: true},
		},
		"an address alone": {
			Servers{Addrs: []string{"10.0.0.9:6379"}},
			want{mode: ModeSingle, addrs: []string{"10.0.0.9:6379"}},
		},
		"a socket": {
			Servers{URL: "unix:///run/redis.sock?db=2"},
			want{mode: ModeSingle, network: "unix", addrs: []string{"/run/redis.sock"}, db: 2},
		},
		"a cluster, by its addresses": {
			Servers{URL: "redis://:pw@a:1", Addrs: []string{"b:1", "c:1"}},
			want{mode: ModeCluster, network: "tcp", password: "pw", addrs: []string{"a:1", "b:1", "c:1"}},
		},
		"a cluster, by its mode": {
			Servers{Addrs: []string{"a:1"}, Mode: ModeCluster},
			want{mode: ModeCluster, addrs: []string{"a:1"}},
		},
		"sentinels": {
			Servers{URL: "redis://u:p@a:1/2?sentinel_username=su&sentinel_password=sp", Addrs: []string{"b:1"}, MasterName: "main"},
			want{
				mode: ModeSentinel, network: "tcp", user: "u", password: "p", master: "main", sentinelUser: "su", sentinelPassword: "sp",
				addrs: []string{"a:1", "b:1"}, db: 2,
			},
		},
	} {
		o, err := tc.servers.options()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := want{
			o.mode, o.base.Network, o.base.Username, o.base.Password, o.master, o.sentinelUsername, o.sentinelPassword,
			o.addrs, o.base.DB, o.base.TLSConfig != nil,
		}
		if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(want{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		client := o.client()
		_, isCluster := client.(*redis.ClusterClient)
		if isCluster != (o.mode == ModeCluster) {
			t.Errorf("%s: a client of type %T", name, client)
		}
		_ = client.Close()
	}
}

// The errors go to the log and to whoever runs check: they may not repeat what may
// be a password.
func TestBadServers(t *testing.T) {
	for _, s := range []Servers{
		{},
		{URL: "http://:hunter2@x:1"},
		{URL: "redis://:hunter2@x:notaport"},
		{URL: "redis://:hunter2@x:1/hunter2"},
		{URL: "redis://x:1/?password=hunter2"},
		{URL: "redis://:hunter2@x\x7f:1"},
		{URL: "redis://:hunter2@x:1", Mode: "hunter2"},
		{URL: "redis://:hunter2@x:1", Mode: ModeSentinel},
		{URL: "redis://:hunter2@x:1", Mode: ModeCluster, MasterName: "main"},
		{URL: "redis://:hunter2@x:1", Mode: ModeSingle, Addrs: []string{"y:1"}},
		{URL: "redis://:hunter2@x:1/4", Mode: ModeCluster},
		{URL: "unix:///hunter2", Addrs: []string{"y:1"}},
		{URL: "redis://:hunter2@x:1", Addrs: []string{""}},
	} {
		err := s.Validate()
		if !errors.Is(err, ErrServers) {
			t.Errorf("%+v: %v, want ErrServers", s, err)
			continue
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error repeats the password: %v", err)
		}
		if r, err := NewRedis(Options{Servers: s}); r != nil || err == nil {
			t.Errorf("NewRedis(%+v) = %v, %v", s, r, err)
		}
	}
}
