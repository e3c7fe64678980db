package tracing

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

const (
	// tryTime bounds one call of the endpoint.
	tryTime = 10 * time.Second
	// firstWait is before the second try; each further one is twice as long.
	firstWait = time.Second
	// maxReply bounds what is read of an answer, in bytes.
	maxReply = 64 << 10
)

// uploader speaks OTLP/HTTP. OpenTelemetry's own would bring gRPC into the program,
// and settings from the environment that the operator's file knows nothing of.
type uploader struct {
	url    string
	header http.Header
	client *http.Client
}

var _ otlptrace.Client = (*uploader)(nil)

func endpointURL(endpoint string) (string, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", errors.New("traces: the endpoint is no http or https URL")
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces"
	}
	return u.String(), nil
}

func newUploader(endpoint string, header http.Header) (*uploader, error) {
	to, err := endpointURL(endpoint)
	if err != nil {
		return nil, err
	}
	return &uploader{url: to, header: header, client: &http.Client{
		// No proxy of the environment, as to the nodes.
		Transport: &http.Transport{MaxIdleConns: 1, IdleConnTimeout: time.Minute, DisableCompression: true},
		// Header lines with secrets go where the operator said.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Start implements otlptrace.Client.
func (u *uploader) Start(context.Context) error { return nil }

// Stop implements otlptrace.Client.
func (u *uploader) Stop(context.Context) error {
	u.client.CloseIdleConnections()
	return nil
}

// UploadTraces implements otlptrace.Client. It tries again until ctx ends where that
// makes sense (OTLP/HTTP, "Failures"), but not at a stop.
func (u *uploader) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	// On the wire it is an ExportTraceServiceRequest, whose Go type would need gRPC.
	raw, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: spans})
	if err != nil {
		return err
	}
	var body bytes.Buffer
	z := gzip.NewWriter(&body)
	_, _ = z.Write(raw)
	if err := z.Close(); err != nil {
		return err
	}
	closing, _ := ctx.Value(closingKey{}).(<-chan struct{})
	for wait := firstWait; ; wait *= 2 {
		after, again, err := u.try(ctx, body.Bytes())
		if err == nil || !again {
			return err
		}
		timer := time.NewTimer(max(wait, after))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		case <-closing:
			timer.Stop()
			return err
		}
	}
}

// try calls the endpoint once, and says whether to call it again and not before when.
func (u *uploader) try(ctx context.Context, body []byte) (after time.Duration, again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, u.url, bytes.NewReader(body))
	if err != nil {
		return 0, false, err
	}
	for name, values := range u.header {
		r.Header[name] = values
	}
	r.Header.Set("Content-Type", "application/x-protobuf")
	r.Header.Set("Content-Encoding", "gzip")
	r.Header.Set("User-Agent", "sluice")
	res, err := u.client.Do(r)
	if err != nil {
		// Its text has the URL, which is the operator's and holds no secret.
		return 0, true, err
	}
	defer func() { _ = res.Body.Close() }()
	_, _ = io.CopyN(io.Discard, res.Body, maxReply)
	switch res.StatusCode {
	case http.StatusOK, http.StatusAccepted, http.StatusNoContent:
		return 0, false, nil
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		again = true
	}
	seconds, _ := strconv.Atoi(res.Header.Get("Retry-After"))
	return time.Duration(min(max(seconds, 0), int(sendTime/time.Second))) * time.Second, again, fmt.Errorf("the endpoint answered %d", res.StatusCode)
}
