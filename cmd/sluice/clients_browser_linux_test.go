package main

import (
	"bufio"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"sluice/internal/realclients"
	"sluice/internal/syncbuf"
)

// The page for browsers, as it is written, in Chromium: it and the gateway are of
// different origins, so that it reads nothing that CORS does not let it read, and its
// connections are cut.
func TestClientsPageInABrowser(t *testing.T) {
	t.Parallel()
	section := readClientsPage(t).sections["In a browser"]
	p, err := readPage("```sh\n```\n" + section[strings.LastIndex(section, "```text\n"):])
	if err != nil || len(p) != 1 {
		t.Fatalf("%v, %v", p, err)
	}
	want := p[0].prints
	chromium := realclients.Chromium(t)
	forEachUpstream(t, func(t *testing.T, node string) {
		way := newCutter(t, cutSome(6, 4))
		e := newAccount(t)
		origin := servePage(t, section, "STREAM=http://"+way.address+e.path("json"), "TONBO_API_KEY="+e.Key)
		e.startBehind(t, way, node, "cors: {origins: [\""+origin+"\"]}\n")
		if got := onScreen(t, chromium, origin, "#out", len(strings.Split(want, "\n"))-1); got != want {
			t.Errorf("the page shows\n%s\nwant\n%s\n%s", got, want, e.Log)
		}
		if got := way.cuts(); got < 4 {
			t.Errorf("%d connections were cut, want 4 at least", got)
		}
	})
}

// A page of an origin that is not listed reads nothing, and its server's token does not
// help it.
func TestClientsPageOfAnotherOrigin(t *testing.T) {
	t.Parallel()
	chromium := realclients.Chromium(t)
	section := readClientsPage(t).sections["In a browser"]
	way := newCutter(t, whole())
	e := newAccount(t).startBehind(t, way, standIn(t), "cors: {origins: [\"http://elsewhere.example\"]}\n")
	// It asks again and again, as where there is no network: a browser does not say which.
	section = strings.Replace(section, "fetch(url, init).catch(() => undefined)", "fetch(url, init)", 1)
	origin := servePage(t, section, "STREAM=http://"+way.address+e.path("json"), "TONBO_API_KEY="+e.Key)
	if got := onScreen(t, chromium, origin, "#out", 1); got != "stopped: Failed to fetch\n" {
		t.Errorf("the page shows %q", got)
	}
	if e.do(t, http.MethodGet, e.path("json")+"?offset=-1", nil).Text != "" {
		t.Error("it has written")
	}
}

// servePage runs the section's server, at a port that is free in place of its own, and
// returns its origin.
func servePage(t *testing.T, section string, env ...string) string {
	t.Helper()
	const own = "127.0.0.1:3000"
	for range 10 { // somebody else may take the port first
		address := freePort(t)
		dir := t.TempDir()
		_, port, _ := strings.Cut(address, ":")
		for _, file := range programs(section) {
			text := strings.ReplaceAll(file.text, own, address)
			writeFile(t, filepath.Join(dir, file.name), strings.ReplaceAll(text, ".listen(3000,", ".listen("+port+","))
		}
		var errOut syncbuf.Buffer
		cmd := exec.Command(realclients.Find(t).Node, "server.mjs") //nolint:noctx // it is killed
		cmd.Dir, cmd.Env, cmd.Stderr = dir, append(os.Environ(), env...), &errOut
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		if line, err := bufio.NewReader(out).ReadString('\n'); err == nil && line == "http://"+address+"/\n" {
			return "http://" + address
		}
		_ = cmd.Process.Kill()
		if _ = cmd.Wait(); !strings.Contains(errOut.String(), "EADDRINUSE") {
			t.Fatalf("the page's server did not begin:\n%s", errOut.String())
		}
	}
	t.Fatal("no port is free")
	return ""
}

// onScreen opens a page in a browser of its own, and is the text of an element when it has
// so many lines, or has stopped.
func onScreen(t *testing.T, chromium, page, element string, lines int) string {
	t.Helper()
	on := func(flag string) chromedp.ExecAllocatorOption { return chromedp.Flag(flag, true) }
	options := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(chromium), chromedp.UserDataDir(t.TempDir()), chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun,
		chromedp.WSURLReadTimeout(time.Minute), on("disable-quic"), on("disable-background-networking"), on("disable-component-update"),
		on("disable-sync"), on("disable-dev-shm-usage"), on("no-default-browser-check"),
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	defer cancel()
	ctx, cancel = chromedp.NewContext(ctx)
	defer cancel()
	if err := chromedp.Do(ctx, chromedp.Navigate(page)); err != nil {
		t.Fatal(err)
	}
	var text string
	for strings.Count(text, "\n") < lines && !strings.Contains(text, "stopped") {
		if err := chromedp.Do(ctx, chromedp.Sleep(50*time.Millisecond)); err != nil {
			t.Fatalf("%v; it shows %q", err, text)
		}
		var err error
		if text, err = chromedp.Run(ctx, chromedp.TextContent(element)); err != nil {
			t.Fatal(err)
		}
	}
	_ = chromedp.Cancel(ctx) // it waits for the browser to leave its folder
	return text
}
