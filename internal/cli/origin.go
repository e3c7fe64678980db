package cli

import (
	"errors"
	"net/netip"
	"net/url"
	"strings"
)

// gatewayOrigin reads the one place that the key may be sent to. http is for
// this machine, unless plain says that the way is private.
func gatewayOrigin(text string, plain bool) (string, error) {
	const want = "the gateway's origin, as in https://streams.example.com"
	if text == "" {
		return "", errors.New("is not set: it is " + want)
	}
	u, err := url.Parse(strings.TrimSuffix(text, "/"))
	switch {
	case err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http":
		return "", errors.New("is no http or https URL: it is " + want)
	case u.User != nil || u.Path != "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.Contains(text, "#"):
		return "", errors.New("has more than scheme, host and port: it is " + want)
	case u.Scheme == "http" && !plain && !loopbackHost(u.Hostname()):
		return "", errors.New("is http, which would send the key in clear: use https, or --plain-http where the way to that machine is private")
	}
	host := strings.ToLower(u.Host)
	if port := map[string]string{"http": ":80", "https": ":443"}[u.Scheme]; strings.HasSuffix(host, port) {
		host = strings.TrimSuffix(host, port)
	}
	return u.Scheme + "://" + strings.TrimSuffix(host, ":"), nil
}

func loopbackHost(host string) bool {
	a, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && a.Unmap().IsLoopback()
}
