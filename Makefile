# Everything that one does with this checkout. Each target makes what it needs first, from a fresh clone.
.DEFAULT_GOAL := help
SHELL := /bin/bash

# The first Python that is new enough; the pins were tried on 3.11.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
    $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
ifeq ($(strip $(PYTHON)),)
PYTHON := python3
endif

BOOTSTRAP := $(PYTHON) deploy/bootstrap.py
RUN := .venv/bin/python

.PHONY: help demo test test-fast test-shim test-long test-containers test-kubelet check format dist openapi roles chart protos messages styles bench-resize bench-rebalance bench-forecast bench-api bench-scheduler bench-agent bench-gpu bench-shim bench-placement bench-placement-speed bench-churn bench-replicas bench-scale bench-telemetry bench-stores bench-utilization bench-past-use bench-extender bench-promises bench-books bench-kept-pods bench-dra bench-reclaim bench-prepare bench-devices bench-pages bench-chart screenshots clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-21s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# `exec`, so that the launcher is make's own child: Ctrl-C reaches both, and make passes a SIGTERM on.
demo: ## start the whole platform on this machine (PORT=8000, DEMO_DIR=.demo, NODES=1); Ctrl-C ends it
	@$(BOOTSTRAP) && exec $(RUN) -m deploy.demo --with-parent

test: ## every behaviour at small counts: PostgreSQL, Valkey, the simulated driver, real agents (times: docs/decisions/0101)
	@$(BOOTSTRAP) --dev && exec $(RUN) -m tests.run

test-fast: ## each Python test once, without platform, browser, pages, libvcuda or several connections
	@$(BOOTSTRAP) --dev && exec $(RUN) -m tests.run --fast

test-shim: ## libvcuda alone: every behaviour on the simulated driver, then under the sanitizers; no database
	@$(MAKE) --no-print-directory -C libvcuda test sanitize sanitize-thread

test-long: ## the counts that a release is judged by, the thread sanitizer, random kills of a whole platform
	@$(BOOTSTRAP) --dev && exec $(RUN) -m tests.run --long

test-containers: ## the image, Compose, CDI, an upgrade, a dump, on this machine's container engine (skipped without one or its base images)
	@$(BOOTSTRAP) --dev && exec $(RUN) -m pytest tests/containers -m containers -q

test-kubelet: ## pods on a real kubelet and containerd (skipped without KUBEBUILDER_ASSETS, GPUCLOUD_TEST_CRI and root)
	@$(BOOTSTRAP) --dev && exec $(RUN) -m pytest tests/kubelet -m kubelet -q

check: ## format, lint, docstrings, types, whether tests can be collected, arrows, migrations, OpenAPI, C warnings, templates, compose; needs no database
	@$(BOOTSTRAP) --dev && exec $(RUN) -m deploy.check

format: ## rewrite Python and templates in the house's format
	@$(BOOTSTRAP) --dev && $(RUN) -m ruff check --fix-only -q . && $(RUN) -m ruff format .

dist: ## write dist/: the wheel of `gpucloud`, the agent as one file, a bill of materials, their digests
	@$(BOOTSTRAP) --dev && exec $(RUN) -m deploy.dist

openapi: ## write docs/openapi.yaml and the command's table of its fields (cli/) anew from the views
	@$(BOOTSTRAP) --dev && exec $(RUN) -m deploy.check --write-openapi

roles: ## write docs/roles.md anew: what each route answers to each role, by asking
	@$(BOOTSTRAP) --dev && WRITE_ROLES=1 exec $(RUN) -m pytest tests/scheduling/test_role_table.py -q

chart: ## write the webhooks' rules of the Helm chart anew from the pod formats
	@$(BOOTSTRAP) --dev && WRITE_CHART=1 exec $(RUN) -m pytest tests/house/test_chart.py -k rules -q

styles: ## write static/css/tabler.css anew: what pages use of Tabler's sheet
	@$(BOOTSTRAP) --dev && exec $(RUN) -m deploy.styles

messages: ## write the catalogues of the pages' languages anew (locale/): what templates and code say now
	@$(BOOTSTRAP) --dev && exec $(RUN) -m gpucloud.messages

protos: ## write agent/kubelet/proto/*_pb2.py anew from the .proto files
	@$(BOOTSTRAP) --dev && exec $(RUN) -m grpc_tools.protoc -I. --python_out=. --pyi_out=. agent/kubelet/proto/*.proto

bench-resize: ## the time from PATCH to in force in the running process, p50 and p99
	@$(BOOTSTRAP) && exec $(RUN) -m benchmarks.resize

bench-rebalance: ## how soon a lender that wakes has its own, and that ten minutes bring no swing (ARGS="--wakes 20 --minutes 10")
	@$(BOOTSTRAP) && exec $(RUN) -m benchmarks.rebalance $(ARGS)

bench-forecast: ## what each rebalance policy lends on a trace of real use, and whom it throttles (TRACE=FILE ARGS="--aside FILE --claims 12")
	@$(BOOTSTRAP) && exec $(RUN) -m benchmarks.forecast $(TRACE) $(ARGS)

bench-api: ## requests a second of one server with two workers, over a hundred thousand claims (ARGS="--runs 3 --seconds 10")
	@$(BOOTSTRAP) --dev && exec $(RUN) -m benchmarks.api $(ARGS)

bench-scheduler: ## placements a second, durably, and from a claim's POST to its place (ARGS="--claims 10000 --nodes 200")
	@$(BOOTSTRAP) --dev && exec $(RUN) -m benchmarks.scheduler $(ARGS)

bench-agent: ## what the agent and its arbiter cost an idle machine of 8 GPUs and 32 claims (ARGS="--seconds 60 --programs")
	@$(BOOTSTRAP) --dev && exec $(RUN) -m benchmarks.agent $(ARGS)

bench-gpu: ## shares, live resizes and a memory limit of a claim, on a real GPU where there is one
	@$(BOOTSTRAP) && exec $(RUN) -m benchmarks.gpu

bench-placement: ## how much each policy gives out of a production trace's GPUs (GPUCLOUD_TRACES=…, LISTS=default,gpuspec33, SEEDS=0-9, ARRIVALS=…, OUT=…)
	@$(BOOTSTRAP) --dev && exec $(RUN) -m benchmarks.placement $(if $(LISTS),--lists $(LISTS)) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(ARRIVALS),--arrivals $(ARRIVALS)) $(if $(OUT),--out $(OUT))

bench-placement-speed: ## decisions a second of the placement core: 5,000 nodes of 8 GPUs, C kernel and plain Python (ARGS="--runs 3")
	@$(BOOTSTRAP) && exec $(RUN) -m benchmarks.placement_speed $(ARGS)

bench-churn: ## a production trace played back by its own clock, against first come, first served (GPUCLOUD_TRACES=…, ARGS="--seeds 0-2")
	@$(BOOTSTRAP) && exec $(RUN) -m benchmarks.churn $(ARGS)

# The Python of the system, which may have PyTorch; nothing else need be installed.
bench-shim: ## what libvcuda costs and how its limits hold, on a real GPU (OUT=.bench, PARTS="calls share …", SECONDS_EACH=3)
	@python3 -m benchmarks.shim $(PARTS) --out $(or $(OUT),.bench) $(if $(SECONDS_EACH),--seconds $(SECONDS_EACH))

bench-replicas: ## how soon agents, pages and placements go on after a web server or a scheduler was killed (ARGS="--nodes 100 --runs 3")
	@$(BOOTSTRAP) --dev && exec $(RUN) -m benchmarks.replicas $(ARGS)

bench-scale: ## what requests, frames and open pages cost as all grows a hundredfold; 1, 2 and 4 web servers (ARGS="--nodes 1000 --fleets 100,1000")
	@$(BOOTSTRAP) --dev && exec $(RUN) -m benchmarks.scale $(ARGS)

bench-telemetry: ## what a fleet's telemetry costs one server process on this machine (ARGS="--nodes 100,300,1000 --seconds 60 --last 600")
	@$(BOOTSTRAP) --dev && exec $(RUN) -m benchmarks.telemetry $(ARGS)

bench-stores: ## seconds of telemetry in PostgreSQL and in ClickHouse's engine: storing, disk, charts; needs chdb-core in .venv (ARGS="--nodes 1000,10000")
	@$(BOOTSTRAP) && exec $(RUN) -m benchmarks.telemetry.stores $(ARGS)

bench-extender: ## how long kube-scheduler waits for the filter: 1,000 nodes in the body, 5,000 by name (ARGS="--requests 300 --runs 3")
	@$(BOOTSTRAP) && exec $(RUN) -m benchmarks.extender $(ARGS)

bench-promises: ## how long a pod waits for the promise of its GPUs while those before it are recorded (ARGS="--pods 300 --runs 3")
	@$(BOOTSTRAP) --dev && exec $(RUN) -m benchmarks.promises $(ARGS)

bench-books: ## how fast bound pods come into the ledger: one event at a time, and by queue and workers (ARGS="--pods 200 --runs 3")
	@$(BOOTSTRAP) --dev && exec $(RUN) -m benchmarks.books $(ARGS)

bench-kept-pods: ## the memory of the watch of a large cluster, every field of its pods and what is read (ARGS="--pods 20000 --bytes 10000")
	@$(BOOTSTRAP) && exec $(RUN) -m benchmarks.kept_pods $(ARGS)

bench-dra: ## pods bound per second by kube-scheduler alone, by the extender and by DRA; KUBEBUILDER_ASSETS names a control plane (ARGS="--nodes 1000 --pods 300 --runs 3")
	@$(BOOTSTRAP) --dev && exec $(RUN) -m benchmarks.dra $(ARGS)

bench-reclaim: ## how soon a lender has its own back from a thousand borrowing claims, by suspend and by release (ARGS="--claims 1000 --gpus 8")
	@$(BOOTSTRAP) --dev && exec $(RUN) -m benchmarks.reclaim $(ARGS)

bench-prepare: ## the agent's own work on each of a hundred ResourceClaims at once, beside busy programs (ARGS="--claims 100 --runs 3")
	@$(BOOTSTRAP) --dev && exec $(RUN) -m benchmarks.prepare $(ARGS)

bench-devices: ## what reading the published devices of a cluster costs, changed or not (ARGS="--nodes 1000 --claims 300")
	@$(BOOTSTRAP) --dev && exec $(RUN) -m benchmarks.devices $(ARGS)

bench-past-use: ## what the past use of a pool costs each half minute, over a hundred thousand claims (ARGS="--claims 100000 --times 50")
	@$(BOOTSTRAP) --dev && exec $(RUN) -m benchmarks.past_use $(ARGS)

bench-utilization: ## answers of GET /utilization/ over thirty days of a thousand GPUs (ARGS="--gpus 1000 --days 30")
	@$(BOOTSTRAP) --dev && exec $(RUN) -m benchmarks.utilization $(ARGS)

bench-pages: ## every page's first paint and weight, the live overview's cost, 200 dashboards at once (ARGS="--parts paint --minutes 5")
	@$(BOOTSTRAP) --dev && exec $(RUN) -m benchmarks.pages $(ARGS)

bench-chart: ## from the press of Apply on a claim's page to the step in its chart (ARGS="--resizes 40")
	@$(BOOTSTRAP) --dev && exec $(RUN) -m benchmarks.charted $(ARGS)

screenshots: ## make docs/screenshots.md and its pictures anew: a demo of its own, both themes, two widths
	@$(BOOTSTRAP) --dev && exec $(RUN) -m tests.gallery

clean: ## remove what was built and cached; keeps .venv and the demo's state
	rm -rf libvcuda/build apps/scheduling/core/placement/kernel/build staticfiles .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
