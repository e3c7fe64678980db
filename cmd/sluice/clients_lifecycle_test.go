package main

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"sluice/internal/realclients"
)

// With streams.lifecycle: protocol the published clients run with nothing but a URL and a
// header: they make the stream, use it and delete it, and make it again.
func TestPublishedClientsMakeStreams(t *testing.T) {
	clients := realclients.Find(t)
	for name, tc := range map[string]struct{ program, file, script string }{
		"JavaScript": {clients.Node, "make.mjs", `import { DurableStream, stream } from "@durable-streams/client";
const url = process.env.STREAM, headers = { Authorization: "Bearer " + process.env.TONBO_API_KEY };
for (const text of ["one", "two"]) {
  const made = await DurableStream.create({ url, headers, contentType: "text/plain", ttlSeconds: 3600 });
  await made.append(text);
  const head = await made.head();
  console.log(head.contentType, await (await stream({ url, headers, live: false })).text());
  await made.close();
  await made.delete();
  console.log((await fetch(url, { headers })).status);
}
`},
		"Python": {clients.Python, "make.py", `import os
from durable_streams import DurableStream, stream
import httpx
url, headers = os.environ["STREAM"], {"Authorization": "Bearer " + os.environ["TONBO_API_KEY"]}
for text in ("one", "two"):
    made = DurableStream.create(url, headers=headers, content_type="text/plain", ttl_seconds=3600)
    made.append(text)
    head = made.head()
    with stream(url, headers=headers, live=False) as res:
        print(head.content_type, res.read_text())
    made.delete()
    print(httpx.get(url, headers=headers).status_code)
`},
	} {
		t.Run(name, func(t *testing.T) {
			forEachUpstream(t, func(t *testing.T, node string) {
				e := &edge{Account: testAccount(t), Key: newTestKey(t), Reads: newTestKey(t)}
				e.start(t, edgeFile(e, []string{node}, protocolSections("sqlite:"+filepath.Join(t.TempDir(), "sluice.db"))), nil)
				dir := clients.Dir(t)
				writeFile(t, filepath.Join(dir, tc.file), tc.script)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, tc.program, tc.file)
				cmd.Dir, cmd.Env = dir, append(os.Environ(), "STREAM="+e.URL+e.path("made-by-client"), "TONBO_API_KEY="+e.Key)
				out, err := cmd.CombinedOutput()
				if want := "text/plain one\n404\ntext/plain two\n404\n"; err != nil || string(out) != want {
					t.Errorf("%v\n%s\nwant\n%s", err, out, want)
				}
				if got := e.do(t, http.MethodGet, "/v1/streams/made-by-client", nil); got.StatusCode != http.StatusNotFound {
					t.Errorf("the Management API still shows it: %d %s", got.StatusCode, got.Text)
				}
			})
		})
	}
}
