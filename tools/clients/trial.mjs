// The published JavaScript client, put to work for a test (cmd/sluice): a producer, a tail
// by SSE, one by long-poll and a read, side by side, through whatever is between it and the
// stream. It prints {"at":"half"} on its way, and at its end what each has seen.
import { DurableStream, IdempotentProducer, stream } from "@durable-streams/client";

const { STREAM: url, TONBO_API_KEY: key, DYING_KEY: dying, COUNT } = process.env;
const count = Number(COUNT);
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const say = (what) => console.log(JSON.stringify(what));

async function insist(input, init) {
  for (let wait = 50; ; wait = Math.min(2 * wait, 1000)) {
    const res = await fetch(input, init).catch(() => undefined);
    if (res && ![429, 500, 502, 503, 504].includes(res.status)) return res;
    await pause(Number(res?.headers.get("Retry-After")) * 1000 || wait * Math.random());
  }
}

// With a dying key the first token is made of that, and ends with it, while the tails are
// open; each later one is made of the key. One exchange is under way at a time.
let subject = dying, token, exchanging, exchanged = 0;
async function exchange() {
  const body = new URLSearchParams({
    grant_type: "urn:ietf:params:oauth:grant-type:token-exchange",
    subject_token_type: "urn:ietf:params:oauth:token-type:access_token",
    subject_token: subject, resource: url, expires_in: "300",
  });
  for (;;) {
    const answer = await insist(new URL("/v1/token", url), { method: "POST", body }).then((res) => res.json()).catch(() => undefined);
    if (answer?.error && subject === key) throw new Error(answer.error);
    if (answer?.error) return { end: 0 }; // this machine was too slow for it
    if (answer) return { text: answer.access_token, end: Date.now() + answer.expires_in * 1000 };
  }
}
async function credential() {
  if (!dying) return key;
  if (token && Date.now() < token.end - 1000) return token.text;
  exchanging ??= exchange().then((made) => {
    [token, subject, exchanging] = [made, key, undefined];
    exchanged++;
  });
  await exchanging;
  return credential();
}
const headers = { Authorization: async () => `Bearer ${await credential()}` };

let opened = 0;
async function follow(live, enough) {
  const seen = [], decoder = new TextDecoder();
  let offset = "-1", rest = "";
  for (;; await pause(50 * Math.random())) {
    let stop;
    const take = (text, batch) => {
      const lines = (rest + text).split("\n");
      rest = lines.pop();
      seen.push(...lines.map((line) => JSON.parse(line).n));
      offset = batch.offset;
      if (enough(seen, batch)) stop();
    };
    try {
      opened++;
      const res = await stream({ url, headers, offset, live, params: { timeout_ms: "5000" } });
      stop = handle.contentType === "application/octet-stream"
        ? res.subscribeBytes((batch) => take(decoder.decode(batch.data, { stream: true }), batch))
        : res.subscribeText((batch) => take(batch.text, batch));
      await res.closed;
      return seen;
    } catch (err) {
      if (err.status === 401 && dying) token = undefined; // by the gateway's clock it is over
      else if (err.status >= 400 && err.status < 500) throw err;
    } finally {
      stop?.();
    }
  }
}

const handle = await DurableStream.connect({ url, headers, fetch: insist });
const all = (seen) => seen.length >= count;
const tails = Promise.all([follow("sse", all), follow("long-poll", all)]);

// Small batches, several under way at once: they come out of order, too.
let failed;
const producer = new IdempotentProducer(handle, crypto.randomUUID(), {
  maxBatchBytes: 40, lingerMs: 1, fetch: insist, onError: (err) => (failed ??= err),
});
for (let n = 1; n <= count; n++) {
  producer.append(JSON.stringify({ n }) + "\n");
  if (n === count / 2) say({ at: "half" });
  await pause(25);
  while (n === count - 1 && dying && exchanged < 2) await pause(50); // the tails see to that
}
await producer.flush();
if (failed) throw failed;
const [sse, poll] = await tails;
const tailed = opened;
const read = await follow(true, (_, batch) => batch.upToDate);
say({ at: "done", sse, poll, read, opened: tailed, exchanged });
