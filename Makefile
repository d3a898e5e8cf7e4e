# Everything the project does, one target each. `make help` lists them.

SHELL := bash
GO    ?= go
TOOL  := $(GO) tool -modfile=hack/tools/go.mod

TESTFLAGS ?=
SEEDS     ?= 1000
PLANS     ?= 8
BENCH     ?= .
BENCHTIME ?= 1s
COUNT     ?= 1

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# vet has -race so that what it compiles on a new machine serves the tests too.
.PHONY: test
test: redis-server c-compiler ## vet, and all tests with the race detector, also against real redis-server processes
	$(GO) vet -race ./...
	REDISTEST_REQUIRED=1 $(GO) test -race -shuffle=on -timeout 9m -p 2 $(TESTFLAGS) ./...

.PHONY: redis-server
redis-server: ## make sure that a redis-server is on the PATH: installs it on Debian as root, or says how
	@hack/ensure-redis.sh

.PHONY: c-compiler
c-compiler: ## make sure of a C compiler in the same way: the race detector links with it, except on macOS
	@[ "$$($(GO) env GOOS)" = darwin ] || hack/ensure.sh $(firstword $(shell $(GO) env CC)) gcc libc6-dev

.PHONY: cover
cover: redis-server ## statement coverage of all tests together; leaves cover.out
	REDISTEST_REQUIRED=1 $(GO) test -timeout 9m -p 2 -coverpkg=./... -coverprofile=cover.out ./...
	@$(GO) tool cover -func=cover.out | tail -n 1
	@echo "line by line: go tool cover -html=cover.out"

.PHONY: lint
lint: ## gofmt, staticcheck, go.mod, and who may import whom
	@files=$$(gofmt -l .) || exit 1; \
		if [ -n "$$files" ]; then echo "not formatted (run: make fmt): $$files"; exit 1; fi
	@deps=$$($(GO) list -deps ./redlock) || exit 1; \
		if grep k8s.io <<<"$$deps"; then echo "redlock must not import Kubernetes"; exit 1; fi
	$(GO) mod tidy -diff
	$(TOOL) staticcheck -tags envtest,kind,chaos ./...

.PHONY: fmt
fmt: ## format the sources
	gofmt -w .

.PHONY: sim
sim: ## simulate SEEDS plans of faults in virtual time (SEEDS=1000), or replay one with its timeline (SEED=n)
	$(GO) test ./internal/sim -count=1 -timeout 60m $(if $(SEED),-seed $(SEED) -v,-seeds $(SEEDS))

.PHONY: mutants
mutants: ## break the library on purpose, one way at a time, and have the simulation find each
	$(GO) run ./hack/mutants

.PHONY: chaos
chaos: redis-server c-compiler ## real processes killed, frozen, cut off, with clocks that jump (PLANS=8, or SEED=n); Linux
	REDISTEST_REQUIRED=1 $(GO) test -tags chaos -race ./test/chaos -count=1 -timeout 60m $(if $(SEED),-seed $(SEED) -v,-seeds $(PLANS)) $(TESTFLAGS)

.PHONY: test-envtest
test-envtest: redis-server c-compiler ## managers, Leases and MultiLock against a real kube-apiserver (built once: 10 to 20 minutes)
	@GO="$(GO)" hack/test-envtest.sh $(TESTFLAGS)

.PHONY: test-kind
test-kind: ## the example's manifests end to end in a kind cluster; needs Docker and kind, see test/kind/README.md
	@GO="$(GO)" hack/test-kind.sh $(TESTFLAGS)

.PHONY: test-kind-offline
test-kind-offline: ## the same where no container registry can be reached: builds the nodes too (Debian, root; an hour)
	@GO="$(GO)" hack/kind/offline.sh hack/test-kind.sh $(TESTFLAGS)

.PHONY: test-kind-processes
test-kind-processes: redis-server c-compiler ## the same scenarios with processes beside a real kube-apiserver
	@GO="$(GO)" SUITE=kind hack/test-envtest.sh $(TESTFLAGS)

.PHONY: bench
bench: redis-server ## run the benchmarks (BENCH=regexp BENCHTIME=1s COUNT=1)
	REDISTEST_REQUIRED=1 $(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -benchtime $(BENCHTIME) -count $(COUNT) -p 1 ./...

.PHONY: bench-smoke
bench-smoke: ## run every benchmark once
	@$(MAKE) --no-print-directory bench BENCHTIME=1x

.PHONY: demo
demo: ## replicas compete on an embedded Redis, the leader is stopped, then killed
	$(GO) run ./examples/controller

.PHONY: demo-redis
demo-redis: redis-server ## the same on one real redis-server, then on three (Redlock)
	hack/demo-redis.sh

.PHONY: demo-cron
demo-cron: ## singleton cron jobs, a takeover, and a stale writer that a database refuses
	$(GO) run ./examples/cron

.PHONY: ci
ci: lint test bench-smoke demo ## what a pull request must pass

.PHONY: clean
clean: ## remove what tests left: cover.out, cached results
	rm -f cover.out
	$(GO) clean -testcache
