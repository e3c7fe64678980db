package cli

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// place is one that a credential may be sent to, in a message's words.
type place struct{ is, credential string }

func theGateway() place {
	return place{"the gateway's origin, as in https://streams.example.com", "the key"}
}

func theAdminListener() place {
	return place{"the admin listener's URL, as in http://127.0.0.1:9090", "the admin token"}
}

// gatewayOrigin is originAt of the gateway.
func gatewayOrigin(text string, plain bool) (string, error) {
	return originAt(theGateway(), text, plain)
}

// originAt reads the one place that the credential may be sent to. http is for
// this machine, unless plain says that the way is private.
func originAt(p place, text string, plain bool) (string, error) {
	if text == "" {
		return "", errors.New("is not set: it is " + p.is)
	}
	u, err := url.Parse(strings.TrimSuffix(text, "/"))
	switch {
	case err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http":
		return "", errors.New("is no http or https URL: it is " + p.is)
	case u.User != nil || u.Path != "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.Contains(text, "#"):
		return "", errors.New("has more than scheme, host and port: it is " + p.is)
	case !goodPort(u.Port()):
		return "", errors.New("has a port that none can be: one is from 1 to 65535")
	case u.Scheme == "http" && !plain && !loopbackHost(u.Hostname()):
		return "", fmt.Errorf("is http, which would send %s in clear: use https, or --plain-http where the way to that machine is private", p.credential)
	}
	host := strings.ToLower(u.Host)
	if port := map[string]string{"http": ":80", "https": ":443"}[u.Scheme]; strings.HasSuffix(host, port) {
		host = strings.TrimSuffix(host, port)
	}
	return u.Scheme + "://" + strings.TrimSuffix(host, ":"), nil
}

func goodPort(port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return port == "" || err == nil && n > 0
}

func loopbackHost(host string) bool {
	a, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && a.Unmap().IsLoopback()
}
