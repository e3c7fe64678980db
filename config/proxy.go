package config

// What may begin a connection (Config.ProxyProtocol).
const (
	ProxyOff      = "off"
	ProxyOptional = "optional"
	ProxyRequired = "required"
)

// proxyProtocol checks that there is somebody whose header is believed.
func (f *findings) proxyProtocol(c *Config) {
	switch c.ProxyProtocol {
	case ProxyOptional, ProxyRequired:
		if len(c.TrustedProxies) == 0 {
			f.add("proxy_protocol", `is %s, and nobody's header is believed without trusted_proxies; write trusted_proxies: [10.0.0.9], the addresses from which your load balancers connect, or proxy_protocol: "off"`, c.ProxyProtocol)
		}
	}
}
