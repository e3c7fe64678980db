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
)

// The page for browsers, as it is written, in Chromium: it and the gateway are of
// different origins, so that it reads nothing that CORS does not let it read, and its
// connections are cut.
func TestClientsPageInABrowser(t *testing.T) {
	section := readClientsPage(t).sections["In a browser"]
	p, err := readPage("```sh\n```\n" + section[strings.LastIndex(section, "```text\n"):])
	if err != nil || len(p) != 1 {
		t.Fatalf("%v, %v", p, err)
	}
	want := p[0].prints
	chromium := realclients.Chromium(t)
	forEachUpstream(t, func(t *testing.T, node string) {
		way := newCutter(t, cutSome(6, 4))
		server := freePort(t)
		e := behind(t, way, node, "cors: {origins: [\"http://"+server+"\"]}\n")
		servePage(t, server, section, "STREAM=http://"+way.address+e.path("json"), "TONBO_API_KEY="+e.Key)
		if got := onScreen(t, chromium, "http://"+server+"/", "#out", len(strings.Split(want, "\n"))-1); got != want {
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
	chromium := realclients.Chromium(t)
	section := readClientsPage(t).sections["In a browser"]
	way := newCutter(t, whole())
	server := freePort(t)
	e := behind(t, way, standIn(t), "cors: {origins: [\"http://elsewhere.example\"]}\n")
	// It asks again and again, as where there is no network: a browser does not say which.
	section = strings.Replace(section, "fetch(url, init).catch(() => undefined)", "fetch(url, init)", 1)
	servePage(t, server, section, "STREAM=http://"+way.address+e.path("json"), "TONBO_API_KEY="+e.Key)
	if got := onScreen(t, chromium, "http://"+server+"/", "#out", 1); got != "stopped: Failed to fetch\n" {
		t.Errorf("the page shows %q", got)
	}
	if e.do(t, http.MethodGet, e.path("json")+"?offset=-1", nil).Text != "" {
		t.Error("it has written")
	}
}

// servePage runs the section's server, at an address of the test's in place of its own.
func servePage(t *testing.T, address, section string, env ...string) {
	t.Helper()
	dir := t.TempDir()
	host, port, _ := strings.Cut(address, ":")
	for _, file := range programs(section) {
		writeFile(t, filepath.Join(dir, file.name), strings.ReplaceAll(file.text, `.listen(3000, "127.0.0.1"`, ".listen("+port+`, "`+host+`"`))
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, realclients.Find(t).Node, "server.mjs")
	cmd.Dir, cmd.Env, cmd.Stderr = dir, append(os.Environ(), env...), os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it is killed
	})
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("the page's server did not begin: %v", err)
	}
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
