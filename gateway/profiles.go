package gateway

import (
	"net/http"
	"net/http/pprof" // what it registers by itself is never served: no server here has the default mux
	"strings"

	"sluice/internal/refusal"
)

const profilesPrefix = "/debug/pprof/"

// profile serves Go's profiles (design §11). They hold the names of functions and
// numbers, no value of a request; what the process was started with (cmdline) is left
// out, and so is what only takes what a client sends (symbol).
func profile(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	switch name := strings.TrimPrefix(r.URL.Path, profilesPrefix); name {
	case "":
		pprof.Index(w, r)
	case "profile":
		pprof.Profile(w, r)
	case "trace":
		pprof.Trace(w, r)
	case "allocs", "block", "goroutine", "heap", "mutex", "threadcreate":
		pprof.Handler(name).ServeHTTP(w, r)
	default:
		say(w, r, refusal.Because(refusal.NotFound, "There is no such profile: "+profilesPrefix+" lists them.", nil))
	}
}
