# Everything the project does, one target each. `make help` lists them.

SHELL := /bin/bash
GO    ?= go
TOOL  := $(GO) tool -modfile=hack/tools/go.mod

SEEDS     ?= 1000
BENCH     ?= .
BENCHTIME ?= 1s
COUNT     ?= 1

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: test
test: redis-server ## vet, and all tests with the race detector, also against real redis-server processes
	$(GO) vet ./...
	REDISTEST_REQUIRED=1 $(GO) test -race -shuffle=on -timeout 9m ./...

.PHONY: redis-server
redis-server: ## make sure that a redis-server is on the PATH: installs it on Debian as root, or says how
	@hack/ensure-redis.sh

.PHONY: lint
lint: ## gofmt, staticcheck, go.mod, and who may import whom
	@test -z "$$(gofmt -l . | tee /dev/stderr)" || { echo "run: make fmt"; exit 1; }
	@if $(GO) list -deps ./redlock | grep k8s.io; then echo "redlock must not import Kubernetes"; exit 1; fi
	$(GO) mod tidy -diff
	$(TOOL) staticcheck ./...

.PHONY: fmt
fmt: ## format the sources
	gofmt -w .

.PHONY: sim
sim: ## simulate SEEDS plans of faults in virtual time (SEEDS=1000)
	$(GO) test ./internal/sim -count=1 -timeout 60m -seeds $(SEEDS)

.PHONY: mutants
mutants: ## break the library on purpose, one way at a time, and have the simulation find each
	$(GO) run ./hack/mutants

.PHONY: bench
bench: redis-server ## run the benchmarks (BENCH=regexp BENCHTIME=1s COUNT=1)
	REDISTEST_REQUIRED=1 $(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -benchtime $(BENCHTIME) -count $(COUNT) ./...

.PHONY: bench-smoke
bench-smoke: ## run every benchmark once
	@$(MAKE) --no-print-directory bench BENCHTIME=1x

.PHONY: demo
demo: ## replicas compete on an embedded Redis, the leader is stopped, then killed
	$(GO) run ./examples/controller

.PHONY: ci
ci: lint test bench-smoke demo ## what a pull request must pass

.PHONY: clean
clean: ## remove what tests and builds left in the cache
	$(GO) clean -testcache ./...
