"""The published Python client, put to work for a test (cmd/sluice): see trial.mjs."""

import json
import os
import random
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import httpx
from durable_streams import DurableStream, DurableStreamError, stream

URL, KEY, DYING = os.environ["STREAM"], os.environ["TONBO_API_KEY"], os.environ.get("DYING_KEY")
COUNT = int(os.environ["COUNT"])


def say(what):
    print(json.dumps(what), flush=True)


class Insist(httpx.BaseTransport):
    def __init__(self):
        self.http = httpx.HTTPTransport()

    def handle_request(self, request):
        wait = 0.05
        while True:
            after = 0.0
            try:
                response = self.http.handle_request(request)
                if response.status_code not in (429, 500, 502, 503, 504):
                    if request.method == "POST":
                        response.read()
                    return response
                response.close()
                after = float(response.headers.get("Retry-After", 0))
            except httpx.TransportError:
                pass
            time.sleep(after or wait * random.random())
            wait = min(2 * wait, 1)

    def close(self):
        self.http.close()


http = httpx.Client(transport=Insist(), timeout=60)
token = {"text": "", "end": 0.0, "subject": DYING, "exchanged": 0}
exchanging = threading.Lock()


def credential():
    if not DYING:
        return KEY
    with exchanging:
        while time.monotonic() >= token["end"]:
            answer = http.post(
                httpx.URL(URL).join("/v1/token"),
                data={
                    "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
                    "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
                    "subject_token": token["subject"],
                    "resource": URL,
                    "expires_in": "300",
                },
            ).json()
            if "error" in answer and token["subject"] == KEY:
                raise RuntimeError(answer["error"])
            # An error of the first: this machine was too slow for it.
            token.update(text=answer.get("access_token"), end=time.monotonic() + answer.get("expires_in", 0), subject=KEY)
            token["exchanged"] += 1
        return token["text"]


headers = {"Authorization": lambda: f"Bearer {credential()}"}
handle = DurableStream.connect(URL, headers=headers, client=http)
opened = []


def follow(live, enough):
    mode = "bytes" if handle.content_type == "application/octet-stream" else "text"
    seen, offset, rest = [], "-1", b"" if mode == "bytes" else ""
    end = b"\n" if mode == "bytes" else "\n"
    while True:
        try:
            opened.append(live)
            with stream(URL, offset=offset, live=live, headers=headers, client=http, timeout=60, params={"timeout_ms": "5000"}) as res:
                for event in res.iter_events(mode=mode):
                    *lines, rest = (rest + event.data).split(end)
                    seen.extend(json.loads(line)["n"] for line in lines)
                    offset = event.next_offset
                    if enough(seen):
                        return seen
            if live is False:
                return seen
        except httpx.TransportError:
            pass
        except DurableStreamError as err:
            if not (DYING and err.status == 401):
                raise
            token["end"] = 0  # by the gateway's clock it is over
        time.sleep(0.05 * random.random())


def everything(seen):
    return len(seen) >= COUNT


with ThreadPoolExecutor() as threads:
    # This client decodes no base64: it follows bytes by long-poll alone.
    by_sse = "long-poll" if handle.content_type == "application/octet-stream" else "sse"
    tails = [threads.submit(follow, by_sse, everything), threads.submit(follow, "long-poll", everything)]
    seq = 0
    keys = {"Producer-Id": str(uuid.uuid4()), "Producer-Epoch": "0", "Producer-Seq": lambda: str(seq)}
    producer = DurableStream(URL, headers={**headers, **keys}, content_type=handle.content_type, client=http, batching=False, timeout=60)
    is_json = handle.content_type == "application/json"
    for n in range(1, COUNT + 1):
        producer.append({"n": n} if is_json else json.dumps({"n": n}) + "\n")
        seq += 1
        if n == COUNT // 2:
            say({"at": "half"})
        time.sleep(0.025)
        while n == COUNT - 1 and DYING and token["exchanged"] < 2:
            time.sleep(0.05)  # the tails see to that
    sse, poll = (tail.result() for tail in tails)
tailed = len(opened)
say({"at": "done", "sse": sse, "poll": poll, "read": follow(False, lambda seen: False), "opened": tailed, "exchanged": token["exchanged"]})
