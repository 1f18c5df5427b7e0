# `make help` lists the commands. Each prepares what it needs.
SHELL := /bin/bash
# pytest keeps its rewritten asserts as bytecode; without it each of its processes rewrites thousands of them.
export PYTHONDONTWRITEBYTECODE :=
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3

VENV := .venv
PY := $(VENV)/bin/python
TRAINER_VENV := .venv-trainer
TRAINER_PY := $(TRAINER_VENV)/bin/python
PIP := -m pip install -qq --disable-pip-version-check

##@ Each day
.PHONY: help
help: ## this list
	@grep -hE '^([a-z-]+:.*## |##@ )' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/; s/^##@ /\n/' | expand -t 20

CONTRACT := trainer_image/src/tfgpujob_contract
$(VENV)/.stamp: requirements/dev.txt operator/pyproject.toml $(CONTRACT)/pyproject.toml
	@echo "preparing $(VENV) (operator, tools)"
	@$(PYTHON) -m venv $(VENV)
	@$(PY) $(PIP) --require-hashes -r requirements/dev.txt
	@$(PY) $(PIP) --no-deps --no-build-isolation -e operator -e $(CONTRACT)
	@touch $@

$(TRAINER_VENV)/.stamp: trainer_image/requirements/dev.txt trainer_image/pyproject.toml $(CONTRACT)/pyproject.toml
	@echo "preparing $(TRAINER_VENV) (TensorFlow on CPU, about 1.5 GB)"
	@$(PYTHON) -m venv $(TRAINER_VENV)
	@$(TRAINER_PY) $(PIP) --require-hashes -r trainer_image/requirements/dev.txt
	@$(TRAINER_PY) $(PIP) --no-deps --no-build-isolation -e trainer_image -e $(CONTRACT)
	@touch $@

.PHONY: venv venv-trainer
venv: $(VENV)/.stamp ## the tools' virtual environment
venv-trainer: $(TRAINER_VENV)/.stamp ## the trainer's virtual environment, with TensorFlow

.PHONY: demo
demo: venv ## from nothing to a trained model: cluster, images, Helm, a job
	@$(PY) -m localcluster.demo

.PHONY: lint types
lint: venv ## ruff and the import contracts
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	PYTHONPATH=trainer_image/src $(VENV)/bin/lint-imports
types: venv ## mypy, strict
	$(VENV)/bin/mypy

.PHONY: crds
crds: venv ## the CRD, the references, and the tables of the docs, from the code
	$(PY) -m tests.generated_docs --write

DOCS_VENV := .venv-docs
$(DOCS_VENV)/.stamp: docs/requirements.txt
	@$(PYTHON) -m venv $(DOCS_VENV)
	@$(DOCS_VENV)/bin/python $(PIP) --require-hashes -r docs/requirements.txt
	@touch $@

.PHONY: docs docs-serve
docs: $(DOCS_VENV)/.stamp ## the documentation as a site, in build/site
	@NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict
	@echo "open build/site/index.html; with its search, which a browser runs for no file: make docs-serve"
docs-serve: docs ## the same on http://127.0.0.1:8000, with search, until ^C
	@$(PYTHON) -m http.server --bind 127.0.0.1 --directory build/site 8000

##@ The local cluster
.PHONY: cluster-up cluster-down cluster-status
cluster-up: venv ## a real Kubernetes cluster on this machine (docs/local-cluster.md)
	$(PY) -m localcluster up
cluster-down: venv ## stop it, and put the machine back as it was
	$(PY) -m localcluster down
cluster-status: venv ## what runs, and where its kubeconfig and logs are
	$(PY) -m localcluster status

##@ Tests
.PHONY: check check-trainer
check: lint types ## the loop: lint, types, unit tests without the slow ones; what is changed comes first
	$(PY) -m pytest tests/unit -m "not cluster and not slow and not deep" -n auto -q --changed-first --maxfail=5
FILE ?= tests/trainer
check-trainer: venv-trainer ## the trainer's tests of one file, without an import of TensorFlow (FILE=tests/trainer/test_best.py)
	@$(TRAINER_PY) -m tests.trainer.kept $(FILE) -m "not deep" -q

.PHONY: test test-unit test-trainer test-cluster test-cluster-all test-deep test-all flakes
PARTS := lint types docs test-unit test-trainer
test: ## what must pass before a commit lands, and how each part went; no root, no cluster
	@failed=0; rows=; for part in $(PARTS); do \
		echo "=== $$part"; begun=$$SECONDS; went=passed; \
		$(MAKE) --no-print-directory $$part || { went=FAILED; failed=1; }; \
		rows+=$$(printf '%-18s%s %6d s' $$part $$went $$((SECONDS - begun)))$$'\n'; \
	done; printf '\n%s' "$$rows"; exit $$failed
UNIT := $(PY) -m pytest tests/unit tests/contract tests/conformance -n auto --dist worksteal
TRAINER := $(TRAINER_PY) -m pytest tests/trainer -n 2 --dist loadfile --no-loadscope-reorder
test-unit: venv ## the operator's tests: unit, contract with the trainer, crash points
	$(UNIT) -m "not cluster and not deep" --budget test-unit
test-trainer: venv-trainer ## the trainer's tests, with real TensorFlow processes
	$(TRAINER) -m "not deep" --budget test-trainer
test-cluster: venv venv-trainer ## the same promises on a real cluster: the one that is up, or one that is built and then ended
	@$(PY) -m tests.integration quick
test-cluster-all: venv venv-trainer ## also those that need it for themselves, or take long
	@$(PY) -m tests.integration all
SHARD ?= $(shell $(PYTHON) -m tests.tiers shard)
test-deep: venv venv-trainer ## one shard of what is too long for the tests above (SHARD=1/6 to 6/6; by default the commit's)
	$(UNIT) -m "deep and not cluster" --shard $(SHARD) --part unit
	FRESH=1 $(TRAINER) -m deep --shard $(SHARD) --part trainer
	@$(PY) -m tests.integration deep --shard $(SHARD)
test-all: ## everything, in hours, with training processes that are not forked
	$(MAKE) --no-print-directory lint types docs test-unit
	FRESH=1 $(MAKE) --no-print-directory test-trainer
	$(UNIT) -m "deep and not cluster" --shard all --part unit
	FRESH=1 $(TRAINER) -m deep --shard all --part trainer
	$(MAKE) --no-print-directory test-cluster-all
flakes: venv venv-trainer ## make test again and again, in random order at a load of 8 (RUNS=10); continues where it was stopped
	@$(PY) -m tests.flakes --runs $(RUNS)
RUNS ?= 10
.PHONY: figures
figures: venv ## how much one has to know to change the code, in figures that are to fall (ARGS=--list)
	@$(PY) -m tests.figures $(ARGS)

SECONDS ?= 600

##@ Proofs of the trainer, with figures in docs/proof.md
parity: venv-trainer ## what the trainer calls exact, against plain Keras in float64 (about 4 minutes)
	@$(TRAINER_PY) -m tests.trainer.parity
resumed: venv-trainer ## every program of examples/, killed in the middle and started again, to the bit (docs/proof.md)
	@$(TRAINER_PY) -m tests.trainer.resumed

.PHONY: differential differential-planted
differential: venv-trainer ## programs by chance, run by plain Keras and by the trainer, until one differs in silence (SECONDS=600)
	@$(TRAINER_PY) -W ignore -m tests.trainer.differential --seconds $(SECONDS)
differential-planted: venv-trainer ## how many programs it takes to find each planted bug (at most 300)
	@$(TRAINER_PY) -W ignore -m tests.trainer.differential --planted --most 300

##@ Benchmarks (docs/benchmarks.md)
.PHONY: bench-operator
bench-operator: venv ## the operator's speed beside a direct client and kube's Job controller (BASE=<commit>: and that commit's)
	@$(PY) -m tests.bench $(if $(BASE),--base $(BASE))

.PHONY: bench-start
bench-start: venv venv-trainer ## from submit to the first step, and a restart, beside the program by hand (ROUNDS=5; ARGS=--cluster: on the one that is up)
	@PYTHONPATH=operator/src $(if $(findstring --cluster,$(ARGS)),$(PY),$(TRAINER_PY)) -m tests.bench.start --rounds $(ROUNDS) $(ARGS)
ROUNDS ?= 5

.PHONY: bench-page
bench-page: venv ## the list and a deleted job's page before a real API server, and the memory of the history
	@$(PY) -m tests.page

.PHONY: bench-trainer
bench-trainer: venv-trainer ## the trainer beside loops written by hand, and what accumulation and slow data cost (BASE=<commit>)
	@$(TRAINER_PY) -m tests.trainer.bench $(if $(BASE),--base $(BASE))

.PHONY: bench-distribution
bench-distribution: venv-trainer ## keras.distribution's DataParallel beside MultiWorkerMirrored, on two workers
	@$(TRAINER_PY) -m tests.trainer.bench.distribution $(ARGS)

# Gigabytes of CUDA, so only where there is a GPU. GPU_PY names another environment that has them.
GPU_VENV := .venv-gpu
$(GPU_VENV)/.stamp: trainer_image/requirements/gpu.txt
	@echo "preparing $(GPU_VENV) (TensorFlow with CUDA, about 5 GB)"
	@$(PYTHON) -m venv $(GPU_VENV)
	@$(GPU_VENV)/bin/python $(PIP) --require-hashes -r trainer_image/requirements/gpu.txt
	@touch $@
GPU_PY ?= $(if $(wildcard /dev/nvidia0),$(GPU_VENV)/bin/python,$(PYTHON))

.PHONY: gpu
gpu: $(if $(filter $(GPU_VENV)/%,$(GPU_PY)),$(GPU_VENV)/.stamp) ## this machine's NVIDIA GPU: speed, precision, memory, recovery, exactness (ARGS="--only loop")
	@PYTHONPATH=trainer_image/src $(GPU_PY) -m tests.gpu $(ARGS)

##@ Proofs of the operator, with figures in docs/proof.md
.PHONY: crashpoints sequences day specwalk fuzz strangers
crashpoints: venv ## planted bugs, then every crash point and every misleading view
	@$(PY) -m tests.harness.mutations
	@$(PY) -m tests.harness.crashpoints
sequences: venv ## 10,000 random stories of people, clusters and operators
	@$(PY) -m tests.harness.sequences
day: venv ## days of six GPUs that elastic and rigid jobs share, in virtual time
	@$(PY) -m tests.harness.day
specwalk: venv ## every field of the CRD through its edge values
	@$(PY) -m tests.harness.specwalk
fuzz: venv ## what strangers may write, by chance along the structure of good objects, for ten minutes
	@$(PY) -m tests.harness.fuzz --seconds 600
strangers: venv ## the operator started among 1,000 poisoned objects of 50 kinds, beside itself without them
	@$(PY) -m tests.harness.strangers

KILLS ?= 100
HANGS ?= 20
LEFT ?= 10
SERVERS ?= 20
PODS ?= 8
.PHONY: recovery
recovery: venv-trainer ## kill -9 at random moments: how long until the next step, in place and by fresh processes (KILLS=100 LEFT=10 HANGS=20 SERVERS=20 PODS=8)
	@$(TRAINER_PY) -m tests.recovery --kills $(KILLS) --left $(LEFT) --hangs $(HANGS) --servers $(SERVERS) --pods $(PODS)

.PHONY: resizing
resizing: venv ## on the cluster of make test-cluster: how long training stands still when workers come and go
	@$(PY) -m tests.resizing

MINUTES ?= 60
.PHONY: endurance
endurance: venv venv-trainer ## everything that works for long, for an hour: nothing that a process holds may grow (MINUTES=60)
	@$(PY) -m tests.endurance --minutes $(MINUTES)

##@ Releases
VERSION ?=
REGISTRY ?=
WRITE ?=
KEY ?=
IMAGES ?= operator cpu gpu
.PHONY: release
release: venv ## packages, images, chart, install.yaml, SBOMs, notes, checksums (VERSION=0.2.0 REGISTRY= IMAGES= KEY= WRITE=)
	@$(PY) -m release "$(VERSION)" --registry "$(REGISTRY)" --images $(IMAGES) $(if $(KEY),--key "$(KEY)") $(if $(WRITE),--write)

##@ Proofs on a cluster
.PHONY: soak
soak: venv ## 200 jobs while operators, API server and etcd are killed (SECONDS=600)
	@$(PY) -m tests.soak --seconds $(SECONDS)
