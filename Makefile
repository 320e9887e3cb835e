# Everything a developer or a build machine runs. `make help` lists it.
#
# Variables: CARGO_TARGET_DIR (where cargo builds), MAINSTAY_CACHE (where servers and tools are kept,
# see tests/env/setup.sh), FUZZ_SECONDS (time per fuzz target), FUZZ_TARGETS (which), SOAK_RUNS, RUNS and WHAT
# (see soak, strain), BENCH_FLAGS (see bench --help), BENCH_SIDECAR_FLAGS (see bench sidecar --help),
# BENCH_CONTROLLER_FLAGS (see bench controller --help).

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

MAINSTAY_CACHE ?= $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/etcd-mainstay
export MAINSTAY_CACHE

FUZZ_SECONDS ?= 10
SOAK_RUNS ?= 1
RUNS ?= 10
WHAT ?= live e2e
# The smaller size is replayed in full, the larger one in part.
BENCH_FLAGS ?= --scale 1,4 --replay-sample 500000
BENCH_SIDECAR_FLAGS ?=
FUZZ_TARGETS ?= $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))

# The variables that name the real servers; without a set-up there are none.
ENV := if [ -f "$(MAINSTAY_CACHE)/env" ]; then . "$(MAINSTAY_CACHE)/env"; fi;

# Tests that need a Kubernetes cluster, tests that start servers, and their long or repeated forms, by the convention of
# .config/nextest.toml.
SOAK := test(/(^|::)soak::/)
CLUSTER := package(mainstay-tests) & kind(test) & test(/^cluster::/)
LIVE := (package(mainstay-store) + package(mainstay-testkit) + package(mainstay-tests)) & kind(test) - ($(CLUSTER)) + test(/(^|::)live::/)

# Test binaries are built once, then run by this list: no tier waits for a build that runs in parallel.
BUILT := $${CARGO_TARGET_DIR:-target}/nextest
NEXTEST := cargo nextest run --binaries-metadata "$(BUILT)/binaries.json" --cargo-metadata "$(BUILT)/cargo.json"

.PHONY: help test
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: ## everything: set-up, lint, unit, live servers, a cluster, documentation, brief fuzzing
	@tests/env/test-all.sh

.PHONY: setup build build-tests
setup: ## install real etcd servers, object stores and tools into the cache
	@tests/env/setup.sh test

build: ## build the programs in release mode
	cargo build --release --workspace --bins

build-tests: ## build the test binaries and the programs they run
	@mkdir -p "$(BUILT)"
	$(ENV) cargo nextest list --workspace --list-type binaries-only --message-format json >"$(BUILT)/binaries.json.new"
	@mv "$(BUILT)/binaries.json.new" "$(BUILT)/binaries.json"
	@cargo metadata --format-version 1 --filter-platform "$$(rustc -vV | sed -n "s/^host: //p")" >"$(BUILT)/cargo.json"

.PHONY: lint lint-tree clippy test-unit test-live test-upstream e2e soak strain doc
lint: lint-tree clippy ## formatting, check-tree.sh, clippy

lint-tree: ## the fast part of lint: formatting and check-tree.sh
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	tests/env/mirror-check.sh
	tests/env/check-tree.sh

# Checked and documented in a directory of their own: both run in parallel with tests, and cargo locks a build directory.
CHECKED := CARGO_TARGET_DIR="$${CARGO_TARGET_DIR:-target}/checked"
clippy: ## clippy, warnings are errors
	$(CHECKED) cargo clippy --workspace --all-targets --quiet -- -D warnings

test-unit: build-tests ## the fast tier: no server, no network
	$(ENV) $(NEXTEST) -E 'not ($(LIVE)) - ($(CLUSTER)) - ($(SOAK))'

# One API server serves all tests that need none of their own.
SHARED := "$${CARGO_TARGET_DIR:-target}/debug/shared-servers" --
# KUBERNETES=1.30 runs the tests of the API server on the oldest supported Kubernetes.
OTHER_KUBERNETES = $(if $(KUBERNETES),tests/env/kubernetes.sh $(KUBERNETES) && export MAINSTAY_KUBERNETES="$(MAINSTAY_CACHE)/kubernetes/$(KUBERNETES)/bin";)
test-live: build-tests ## tests against real etcd servers, object stores and API servers (KUBERNETES=1.30)
	$(OTHER_KUBERNETES) $(ENV) $(SHARED) $(NEXTEST) --test-threads 4 -E '($(LIVE)) - ($(SOAK))'

UPSTREAM := package(mainstay-tests) & kind(test) & test(/^upstream::/)
test-upstream: build-tests ## tests beside the real etcd-backup-restore, with their long forms (also part of test-live and soak)
	$(ENV) $(NEXTEST) --test-threads 4 -E '$(UPSTREAM)'

# The cluster is removed even if tests fail.
ON_CLUSTER = $(ENV) trap '$(CLUSTER_PROGRAM) down' EXIT; $(CLUSTER_PROGRAM) up; $(CLUSTER_PROGRAM) install; \
  $(NEXTEST) --test-threads 3 -E "($(1)) & ($$($(CLUSTER_PROGRAM) filter))"
e2e: build-tests ## tests on a real Kubernetes cluster: KUBECONFIG's, or one of this machine's own
	$(call ON_CLUSTER,$(CLUSTER) - ($(SOAK)))

soak: ## the long and repeated forms of live and end-to-end tests (SOAK_RUNS times)
	@$(MAKE) --no-print-directory setup build-tests
	for run in $$(seq $(SOAK_RUNS)); do echo "soak: run $$run of $(SOAK_RUNS)"; \
	  ($(ENV) $(SHARED) $(NEXTEST) --test-threads 4 -E '($(LIVE)) & $(SOAK)'); \
	  ($(call ON_CLUSTER,$(CLUSTER) & $(SOAK))); done

strain: ## live and end-to-end tests RUNS times with one core kept busy; resumable (WHAT="live e2e demo test")
	@tests/env/strain.sh "$(RUNS)" $(WHAT)

doc: ## documentation builds without a warning, its examples run
	$(CHECKED) RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --document-private-items --quiet
	cargo test --workspace --doc --quiet

# Benchmarks measure release builds.
MEASURED := cargo build --release --workspace --bin bench --bin mainstay-controller --bin mainstay-restorer --bin mainstay-sidecar

# The programs under test, which become images, and the program that makes clusters.
PROGRAMS := cargo build --quiet --workspace --bins
CLUSTER_PROGRAM := "$${CARGO_TARGET_DIR:-target}/debug/cluster"

.PHONY: cluster-up cluster-down recovery-times
cluster-up: ## a real Kubernetes cluster on this machine (needs root)
	@$(MAKE) --no-print-directory setup
	$(PROGRAMS)
	@$(ENV) $(CLUSTER_PROGRAM) up

cluster-down: ## remove that cluster completely
	@$(PROGRAMS)
	@$(CLUSTER_PROGRAM) down

recovery-times: ## update the times in docs/reference/recovery.md from the last `make e2e`
	@$(PROGRAMS)
	@$(CLUSTER_PROGRAM) report docs/reference/recovery.md

.PHONY: fuzz-targets fuzz bench bench-sidecar bench-controller demo demo-local
fuzz-targets: ## build the fuzz targets, in a directory of their own
	$(ENV) tests/env/fuzz.sh

fuzz: ## every fuzz target for FUZZ_SECONDS (10)
	$(ENV) FUZZ_SECONDS=$(FUZZ_SECONDS) tests/env/fuzz.sh $(FUZZ_TARGETS)

bench: ## measure restore, compact, verify and the sidecar against a real etcd
	@$(MAKE) --no-print-directory setup
	$(MEASURED)
	$(ENV) "$${CARGO_TARGET_DIR:-target}/release/bench" \
	  --date "$$(date -u +%F)" --write docs/internals/benchmarks.md $(BENCH_FLAGS)
	@$(MAKE) --no-print-directory bench-sidecar
	@$(MAKE) --no-print-directory bench-controller

bench-sidecar: ## measure the sidecar alone
	@$(MAKE) --no-print-directory setup
	$(MEASURED)
	$(ENV) MAINSTAY_SIDECAR="$${CARGO_TARGET_DIR:-target}/release/mainstay-sidecar" \
	  "$${CARGO_TARGET_DIR:-target}/release/bench" sidecar \
	  --date "$$(date -u +%F)" --write docs/internals/benchmarks-sidecar.md $(BENCH_SIDECAR_FLAGS)

bench-controller: ## measure the controller alone
	@$(MAKE) --no-print-directory setup
	$(MEASURED)
	$(ENV) "$${CARGO_TARGET_DIR:-target}/release/bench" controller \
	  --date "$$(date -u +%F)" --write docs/internals/benchmarks-controller.md $(BENCH_CONTROLLER_FLAGS)

demo: ## a cluster, the controller, an Etcd, a disaster and its recovery, step by step (needs root; KEEP=1 keeps the cluster)
	@tests/env/setup.sh demo
	@tests/env/build-demo.sh
	@$(ENV) "$${CARGO_TARGET_DIR:-target}/debug/demo"

demo-local: ## three etcd servers, sidecars, a lost quorum, a restore; without Kubernetes
	@$(MAKE) --no-print-directory setup
	$(PROGRAMS)
	@$(ENV) MAINSTAY_SIDECAR="$${CARGO_TARGET_DIR:-target}/debug/mainstay-sidecar" \
	  "$${CARGO_TARGET_DIR:-target}/debug/demo-local"

.PHONY: release test-release
release: ## build the programs, images and chart of this commit reproducibly into target/release-artifacts
	@tests/env/release.sh

test-release: ## build the release twice in different directories and compare (long)
	@tests/env/release.sh reproduce

.PHONY: manual
manual: ## regenerate the manual pages in docs/reference/man
	$(ENV) MAINSTAY_UPDATE_MANUAL=1 cargo nextest run --workspace -E 'test(/man(ual)?_pages?_(is|are)_up_to_date/)'

.PHONY: deny clean-cache
deny: ## licences, sources and banned crates (needs cargo-deny)
	cargo deny --all-features check bans licenses sources

clean-cache: ## delete every downloaded server and tool
	rm -rf -- "$(MAINSTAY_CACHE)"
