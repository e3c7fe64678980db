# Everything that is done to this repository is a target here; `make help` lists them.
# GNU make 4.3 or later, bash and Go are enough for `make run` and `make test`.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --no-builtin-rules

GO ?= go
PKG ?= ./...
COUNT ?= 6
BENCH ?= .
FUZZTIME ?= 30s
# What `make test` hands on to go test, e.g. `make test PKG=./auth TESTFLAGS='-run Key -v'`.
TESTFLAGS ?=

# The real upstream that the end-to-end suite runs against; kept outside the work tree, so that it
# is built once for all clones.
URSULA_VERSION := 0.11.5
URSULA_ROOT := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/sluice/ursula-$(URSULA_VERSION)

# What holds the Management API against its openapi.yaml, kept outside the work tree too.
SCHEMATHESIS_VERSION := 4.32.5
SCHEMATHESIS_ROOT := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/sluice/schemathesis-$(SCHEMATHESIS_VERSION)
ifneq ($(wildcard $(SCHEMATHESIS_ROOT)/bin/schemathesis),)
export SCHEMATHESIS ?= $(SCHEMATHESIS_ROOT)/bin/schemathesis
endif

# The linters have a module file of their own; Go builds them once and keeps them in its cache.
LINT := $(GO) tool -modfile=tools/lint/go.mod golangci-lint

# Other people's clients that the tests run through the gateway: a folder for each state of the two
# files that lock them. The tests find it by the same name (internal/realclients).
CLIENTS_ROOT := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/sluice/clients-$(shell cat tools/clients/package-lock.json tools/clients/requirements.txt | sha256sum | cut -c1-12)
export SLUICE_CLIENTS ?= $(CLIENTS_ROOT)

# Go stamps the version from Git. Where Git cannot read the tree (an archive, another owner) the
# build goes on without the stamp instead of failing.
BUILDVCS := $(shell git rev-parse HEAD >/dev/null 2>&1 || echo -buildvcs=false)
BUILD := CGO_ENABLED=0 $(GO) build -trimpath $(BUILDVCS)

.PHONY: help
help: ## list the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: build ## the whole thing in one process, nothing to install; ARGS goes to `sluice dev`
	@exec bin/sluice dev $(ARGS)

.PHONY: build
build: ## bin/sluice, static
	@[[ -x bin/sluice ]] || echo "building bin/sluice: a minute or two the first time"
	@$(BUILD) -o bin/sluice ./cmd/sluice

.PHONY: test
test: bin/testrun ## go vet and all tests, with the race detector but for those of deploy/; says what was left out
	@$(GO) vet $(PKG)
	@bin/testrun -shuffle=on -timeout 25m $(TESTFLAGS) $(PKG)
ifeq ($(PKG),./...)
	@$(MAKE) test-deploy
endif

# deploy/ by Helm, Compose's library and what else reads it. A module of their own, which has no
# goroutine to race: without the detector its many packages build in half the time.
.PHONY: test-deploy
test-deploy:
	@$(GO) -C tools/deploy vet ./...
	@$(GO) -C tools/deploy test -v -timeout 15m ./... | { grep -vE '^=== |^ *--- PASS|^PASS$$' || true; }

.PHONY: soak
soak: bin/testrun ## the long trials in full (hours); `make test` runs their short form
	@SLUICE_SOAK=1 bin/testrun -shuffle=on -timeout 12h -count=1 $(TESTFLAGS) $(PKG)

.PHONY: fuzz
fuzz: ## every fuzz target in turn for FUZZTIME (30s)
	@GO="$(GO)" tools/fuzz.sh "$(FUZZTIME)"

.PHONY: lint
lint: ## format, vet, linters, generated docs, static build, module files; changes nothing
	@$(MAKE) --keep-going $(LINTS)
	@echo "lint: clean"

LINTS := lint-format lint-vet lint-linters lint-docs lint-build lint-mod
.PHONY: $(LINTS)
lint-format:
	@echo "lint: format (make fmt rewrites)"
	@$(LINT) fmt --diff
lint-vet:
	@echo "lint: go vet"
	@$(GO) vet ./...
lint-linters:
	@echo "lint: golangci-lint"
	@$(LINT) run ./...
	@cd tools/deploy && $(GO) tool -modfile="$(CURDIR)/tools/lint/go.mod" golangci-lint run --config "$(CURDIR)/.golangci.yml" ./...
lint-docs:
	@echo "lint: generated docs (make generate rewrites)"
	@$(GO) run ./internal/gendoc -check
lint-build:
	@echo "lint: build without cgo"
	@CGO_ENABLED=0 $(GO) build -buildvcs=false ./...
lint-mod:
	@echo "lint: go.mod, go.sum"
	@$(GO) mod tidy -diff
	@$(GO) -C tools/deploy mod tidy -diff

.PHONY: fmt
fmt: ## rewrite the sources in the house format
	@$(LINT) fmt

.PHONY: generate
generate: ## rewrite the documents that come from the sources
	@$(GO) run ./internal/gendoc

.PHONY: bench
bench: ## Go benchmarks; COUNT, BENCH and PKG choose; the output is benchstat's input
	@$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) $(PKG)

.PHONY: benchstat
benchstat: ## compare two saved outputs of `make bench`: OLD=a.txt NEW=b.txt
	@$(GO) tool -modfile=tools/bench/go.mod benchstat $(OLD) $(NEW)

.PHONY: vuln
vuln: ## known vulnerabilities in what is used; needs the Go vulnerability database
	@$(GO) tool -modfile=tools/lint/go.mod govulncheck ./...

.PHONY: ursula
ursula: ## the real Ursula for the tests: about 15 minutes once, needs Rust's cargo
	@URSULA_VERSION=$(URSULA_VERSION) URSULA_ROOT="$(URSULA_ROOT)" tools/ursula.sh

.PHONY: schemathesis
schemathesis: ## schemathesis for the tests: a minute once, needs Python 3.10 or later
	@[[ -x "$(SCHEMATHESIS_ROOT)/bin/schemathesis" ]] || { \
		python3 -m venv "$(SCHEMATHESIS_ROOT)" && \
		"$(SCHEMATHESIS_ROOT)/bin/pip" install --quiet --disable-pip-version-check "schemathesis==$(SCHEMATHESIS_VERSION)"; }
	@"$(SCHEMATHESIS_ROOT)/bin/schemathesis" --version

.PHONY: clients
clients: ## the Durable Streams clients for the tests: seconds, needs Node.js 20 with npm, Python 3.10
	@CLIENTS_ROOT="$(CLIENTS_ROOT)" tools/clients.sh

.PHONY: clean
clean: ## what was built here; the real parts and Go's caches stay
	@rm -rf bin

# Always asked: Go itself knows whether anything changed.
.PHONY: bin/testrun
bin/testrun:
	@$(GO) build -buildvcs=false -o bin/testrun ./tools/testrun
