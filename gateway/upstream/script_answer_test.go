package upstream

import (
	"fmt"
	"net/http"
	"strings"
)

var (
	okStatus      = [...]int{200, 204, 200, 201}
	refusalStatus = [...]int{400, 409, 503, 403, 404, 503, 429, 412}
	unknownStatus = [...]int{500, 503, 502, 408}
	foreignStatus = [...]int{302, 301, 303, 300}
)

// line says what the status is, and the headers that go with it; no status where
// the node says nothing.
func (rc *receipt) line() (status int, extra string) {
	a := rc.deed
	switch a.Say {
	case sayOK:
		status = okStatus[a.Status%len(okStatus)]
	case sayRefusal:
		status = refusalStatus[a.Status%len(refusalStatus)]
	case sayUnknown:
		status = unknownStatus[a.Status%len(unknownStatus)]
	case sayForeign:
		status, extra = foreignStatus[a.Status%len(foreignStatus)], "Location: http://elsewhere/\r\n"
	case sayRedirect:
		status, extra = http.StatusTemporaryRedirect+a.Status%2, rc.location()
	case saySwitch:
		status, extra = http.StatusSwitchingProtocols, "Upgrade: websocket\r\nConnection: Upgrade\r\n"
	case sayNothing, replies:
	}
	if status == http.StatusServiceUnavailable {
		extra += "Retry-After: 1\r\n"
	}
	if a.Last {
		extra += "Connection: close\r\n"
	}
	return status, extra
}

// compose writes the answer, and tells where its head ends.
func (rc *receipt) compose() (answer string, head int) {
	a := rc.deed
	status, extra := rc.line()
	rc.status = status
	var b strings.Builder
	for i := range a.Infos {
		b.WriteString([...]string{"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", "HTTP/1.1 100 Continue\r\n\r\n"}[i%2])
	}
	if a.Say == sayNothing {
		return b.String(), 0
	}
	text := strings.Repeat(rc.tag()+";", a.Size/len(rc.tag()+";"))
	isHead := rc.link.trial.script.Asks[rc.ask].Kind == askHead
	bare := isHead || rc.status == http.StatusNoContent || rc.status == http.StatusSwitchingProtocols
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n%s: %s\r\n%s", rc.status, http.StatusText(rc.status), tagHeader, rc.tag(), extra)
	switch {
	case bare && !isHead:
		text = ""
		b.WriteString("\r\n")
	case a.Chunks:
		b.WriteString("Transfer-Encoding: chunked\r\n\r\n")
	default:
		fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n", len(text))
	}
	head = b.Len()
	if bare {
		text = ""
	}
	switch half := len(text) / 2; {
	case bare:
	case a.Chunks && half > 0:
		fmt.Fprintf(&b, "%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n", half, text[:half], len(text)-half, text[half:])
	case a.Chunks:
		if text != "" {
			fmt.Fprintf(&b, "%x\r\n%s\r\n", len(text), text)
		}
		b.WriteString("0\r\n\r\n")
	default:
		b.WriteString(text)
	}
	rc.text = text
	return b.String(), head
}

// location is where a redirect leads: to a node, or to an address that is none.
func (rc *receipt) location() string {
	t := rc.link.trial
	where := "http://" + hostOf(rc.node) + "0/x" // begins as the node's own does (facts R22)
	switch to := rc.deed.To - len(t.nodes); {
	case to < 0:
		where = "http://" + hostOf(rc.deed.To) + "/b/s" + askMark + "0"
	case to == 1:
		where = "http://elsewhere:1/"
	case to == 2:
		where = "/somewhere"
	}
	head := "Location: " + where + "\r\nX-Ursula-Raft-Group: 0\r\n"
	if rc.deed.Named {
		head += "X-Ursula-Raft-Leader-Id: 2\r\n"
	}
	return head
}

func hostOf(node int) string { return "abcdefgh"[node:node+1] + ":1" }
