package wire

import (
	"fmt"
	"math"
	"net/http"

	"golang.org/x/net/http/httpguts"
)

// sizeOf is about how many bytes the request takes, and whether it can be
// written at all. What http.Request.Write would let pass but another server could
// read as more than one request is refused here, as http.Transport does.
func sizeOf(req *http.Request) (int64, error) {
	switch {
	case req.URL == nil || req.URL.Host == "":
		return 0, fmt.Errorf("%w: no host", ErrRequest)
	case req.Method != "" && !httpguts.ValidHeaderFieldName(req.Method): // a method is a token, as a name is
		return 0, fmt.Errorf("%w: method %q", ErrRequest, req.Method)
	}
	fields, err := sizeOfFields(req.Header)
	if err != nil {
		return 0, err
	}
	trailer, err := sizeOfFields(req.Trailer)
	if err != nil {
		return 0, err
	}
	size := int64(len(req.Method)+len(req.URL.Host)+len(req.URL.Path)+len(req.URL.RawQuery)) + 256 + fields + trailer
	switch {
	case req.Body == nil || req.Body == http.NoBody:
		return size, nil
	case req.ContentLength <= 0 || req.ContentLength > math.MaxInt64-size:
		return math.MaxInt64, nil // nobody knows
	default:
		return size + req.ContentLength, nil
	}
}

// sizeOfFields is sizeOf for a header or a trailer.
func sizeOfFields(h http.Header) (int64, error) {
	var size int64
	for name, values := range h {
		if !httpguts.ValidHeaderFieldName(name) {
			return 0, fmt.Errorf("%w: header name %q", ErrRequest, name)
		}
		for _, value := range values {
			if !httpguts.ValidHeaderFieldValue(value) {
				return 0, fmt.Errorf("%w: value of header %s", ErrRequest, name) // it may be a secret
			}
			size += int64(len(name) + len(value) + 4)
		}
	}
	return size, nil
}

// asksToClose reports whether the request tells the server to end the connection.
func asksToClose(req *http.Request) bool {
	return req.Close || httpguts.HeaderValuesContainsToken(req.Header["Connection"], "close")
}
