// Package wire speaks HTTP/1.1 to one server on connections that it keeps. It
// owns their keeping and one exchange at a time on each: a request written whole,
// an answer read. Heads, framing and bodies are read and written by net/http's
// own http.ReadResponse and http.Request.Write; what is different from its
// Transport is that an exchange stays on the goroutine that asks for it.
//
// It refuses to know what may be sent again, which server is asked, and who
// waits: it repeats nothing, follows nothing, and tells what became of an
// exchange so that others can decide.
//
// Why not http.Transport: it hands each request to two goroutines of the
// connection and back, which was the largest part of a proxied small read; it
// gives a kept connection on before it has looked for bytes beyond the last
// answer (U05); it repeats requests by itself; and it drops the answer of a
// server that refuses a large body before its end.
package wire
