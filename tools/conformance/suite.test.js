// The conformance suite of Durable Streams against CONFORMANCE_URL, whose streams are below
// /v1/stream/; cmd/sluice/conformance_test.go runs it through a gateway, and says what is
// expected to fail.
import { runConformanceTests } from "@durable-streams/server-conformance-tests";

runConformanceTests({ baseUrl: process.env.CONFORMANCE_URL });
