# Entry point for all tasks. Each target sets up `.venv` itself; `make` alone lists the targets.
# Needed on the machine: make and Python 3.11 or newer with its `venv` module; for the tests of Spark, Java 17 or 21.

SHELL := /bin/sh
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
# What checkov needs agrees with nothing else, and is far larger.
SCANNER := .scanner
# Spark is ten times as large as all the rest together.
SPARK := .spark
# The first of these that is new enough sets up .venv; `make PYTHON=...` names another one.
PYTHONS := $(or $(PYTHON),python3 python3.11 python3.12 python3.13 python3.14)
# Two workers, for the smallest machine this is meant for. A file stays in one worker, so that the
# tests of one file share its servers and do not compete with one another for the processor.
PYTEST_ARGS ?= -n 2 --dist loadfile --durations=10
TEST_GATES := format-check lint prose dockerfiles imports types docs pytest spark-test

.PHONY: help install images demo demo-spark test check sim seeds operator-sim operator-gates guards stories chaos failover saturation consumers forgery hostile scale operator-scale bench bench-spark soak spark-soak \
	fuzz docs spark-install proto crds scan lock format clean changelog cluster cluster-down e2e e2e-full $(TEST_GATES) meta unit

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## Set up .venv with everything pinned, and nothing else
	@:

$(STAMP): requirements/bootstrap.py requirements/uv.txt requirements/dev.txt \
		proto/pyproject.toml broker/pyproject.toml client/pyproject.toml operator/pyproject.toml \
		spark/pyproject.toml tests/testkit/pyproject.toml
	@for python in $(PYTHONS); do \
		if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			exec $$python requirements/bootstrap.py $(VENV); \
		fi; \
	done; \
	echo "Python 3.11 or newer is needed; none of these is: $(PYTHONS)."; \
	echo "Install one, or name one: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1
	@touch $@

demo: install ## See it work: publish, kill -9, restart, count; ends on its own
	@$(VENV)/bin/liftbridge demo

demo-spark: install ## See it work: archive, kill -9, replay, compare; needs Java 17 or 21
	@$(PY) -m pyspark_liftbridge.java
	@$(MAKE) spark-install
	@$(SPARK)/bin/liftbridge spark demo

test: install ## All gates and all tests, fast ones first; fails if any of them fails (SKIP=spark-test)
	@$(MAKE) -k $(filter-out $(SKIP),$(TEST_GATES))

check: install ## Quick gates for every change: format, lint, imports, types, meta and unit tests
	@$(MAKE) -k format-check lint prose dockerfiles imports types meta unit

sim: install ## Simulate clusters, seeds from SEEDS=a:b (0:200), of all worlds or WORLD=name
	@$(PY) -m liftbridge_testkit.sim --seeds $(or $(SEEDS),0:200) $(if $(WORLD),--world $(WORLD))

seeds: install ## Simulate the seeds of this commit, and hold them against their floors (COUNT=2500)
	@SIM_COUNT=$(or $(COUNT),2500) $(PY) -m pytest -q $(PYTEST_ARGS) tests/sim/test_seeds.py

stories: install ## Play the stories in other orders of events (SEEDS=a:b, 0:10; STORY=part of a name)
	@$(PY) -m liftbridge_testkit.sim.scripts.vary $(or $(SEEDS),0:10) $(STORY)

operator-sim: install ## Simulate the operator's planner against models, seeds from SEEDS=a:b (0:200)
	@$(PY) -m liftbridge_testkit.operator_sim --seeds $(or $(SEEDS),0:200)

operator-gates: install ## Remove each gate of the planner and see which tests fail (SEEDS=a:b, 0:0 for tests only)
	@$(PY) -m liftbridge_testkit.operator_sim --seeds $(or $(SEEDS),0:40) --gates

guards: install ## Remove each guard and see which tests fail (GUARD=part of a name, SEEDS=n, 2000)
	@$(PY) -m liftbridge_testkit.guards --workers 2 --seeds $(or $(SEEDS),2000) $(GUARD)

chaos: install ## 60 runs of real clusters under faults (RUNS=n, SEED=n, CHAOS="--faults kill -v")
	@$(PY) -m liftbridge_testkit.chaos --runs $(or $(RUNS),60) --seed $(or $(SEED),1) $(CHAOS)

failover: install ## Measure how long a real cluster accepts no writes when it loses a broker (TIMES=30)
	@$(PY) -m liftbridge_testkit.failover --times $(or $(TIMES),30)

saturation: install ## Check that full load, NATS restarts and broken connections make no cluster fence, elect or shrink an in-sync set (MINUTES=10, RESTARTS, BREAKS)
	@$(PY) -m liftbridge_testkit.saturation --minutes $(or $(MINUTES),10) $(if $(RESTARTS),--restarts $(RESTARTS)) $(if $(BREAKS),--breaks $(BREAKS))

consumers: install ## Let members and coordinators of a group come, go and die: nothing lost, nothing doubled (ROUNDS=200, SEED=n, CLIENT=go)
	@$(PY) -m liftbridge_testkit.consumers --rounds $(or $(ROUNDS),200) --seed $(or $(SEED),1) --client $(or $(CLIENT),python)

forgery: install ## Send forged frames to a cluster under load: none may be accepted (FRAMES=1000000)
	@$(PY) -m liftbridge_testkit.forgery --frames $(or $(FRAMES),1000000)

hostile: install ## Attack a cluster under load as hostile clients: no other client may suffer (SECONDS=8, ONLY=part of a name)
	@$(PY) -m liftbridge_testkit.hostile --seconds $(or $(SECONDS),8) $(if $(ONLY),--only "$(ONLY)")

scale: install ## Measure what replicated partitions cost: first records, rest, kill, restart (PARTITIONS=1000)
	@$(PY) -m liftbridge_testkit.scale --partitions $(or $(PARTITIONS),1000)

operator-scale: install ## Measure what 5,000 Streams cost the operator, on a real API server (STREAMS=5000)
	@$(PY) -m liftbridge_testkit.kube.many --streams $(or $(STREAMS),5000)

bench: install ## Measure this broker beside NATS JetStream, one of each and then three, and print the tables
	@$(PY) tests/bench/run.py
	@$(PY) tests/bench/run.py --cluster

bench-spark: install ## Measure the data source and the jobs of Spark (ROWS=2000000, ONLY="archive floor")
	@$(PY) -m pyspark_liftbridge.java
	@$(MAKE) spark-install
	@$(SPARK)/bin/python tests/bench/bench_spark.py $(if $(ROWS),--rows $(ROWS)) $(if $(ONLY),--only $(ONLY))

soak: install ## 200 x kill -9 under load, fsync=commit (LIFTBRIDGE_KILLS=n, LIFTBRIDGE_SEED=n)
	@LIFTBRIDGE_KILLS=$${LIFTBRIDGE_KILLS:-200} $(PY) -m pytest -q \
		tests/faults/test_kill9.py -k random_moments

spark-soak: install ## 30 x kill -9 of a continuous archive (KILLS, RECORDS, SEED, SOAK=--s3)
	@$(PY) -m pyspark_liftbridge.java
	@$(MAKE) spark-install
	@$(SPARK)/bin/python -m liftbridge_testkit.spark_soak --kills $(or $(KILLS),30) \
		--records $(or $(RECORDS),5000000) --seed $(or $(SEED),1) $(SOAK)

fuzz: install ## Damaged input to every decoder for FUZZ_SECONDS (60); FUZZ_SEED=n repeats a run
	@FUZZ_SECONDS=$${FUZZ_SECONDS:-60} $(PY) -m pytest -q -m fuzz -n 2 --dist load \
		--timeout 0 tests/unit tests/property

cluster: ## Three nodes of Kubernetes on this machine, as root, without Docker (NODES=3)
	@tests/e2e/cluster/build.sh && tests/e2e/cluster/up.sh --nodes $(or $(NODES),3)

cluster-down: ## Take that cluster down and remove all of it
	@tests/e2e/cluster/down.sh

images: ## Build the images, and load them into kind, k3d, minikube or the cluster above
	@deploy/images.sh

spark-install: install $(SPARK)/.installed ## Set up .spark: all of .venv, and PySpark
	@:

$(SPARK)/.installed: $(STAMP) requirements/spark.txt
	@$(PY) requirements/bootstrap.py --with spark $(SPARK)
	@touch $@

spark-test: install ## Tests of the data source in a real Spark; needs Java 17 or 21
	@$(PY) -m pyspark_liftbridge.java
	@$(MAKE) spark-install
	@$(SPARK)/bin/python -m pytest -q -p no:randomly -n 2 --dist loadfile tests/spark

e2e: install ## End-to-end tests on KUBECONFIG if set, on kind if there is Docker, on the cluster above
	@$(PY) -m pytest -q -s -m "e2e and not full" --timeout 0 -p no:randomly tests/e2e

e2e-full: install ## All end-to-end stories, in parts that can be broken off (SHARD=1/7, STORY=names)
	@$(PY) -m liftbridge_testkit.kube.full --shard $(or $(SHARD),1/1) $(if $(STORY),--only $(STORY))

docs: install ## Build the documentation into docs/_build/html; warnings are errors
	@$(PY) -m sphinx -W -n --keep-going -q -b html docs docs/_build/html
	@echo "documentation: docs/_build/html/index.html"

format-check: install
	@$(PY) -m ruff format --check --quiet . || { $(PY) -m ruff format --check .; exit 1; }

lint: install
	@$(PY) -m ruff check --quiet .

prose: install
	@$(VENV)/bin/codespell

dockerfiles: install
	@$(VENV)/bin/hadolint Dockerfile.* tests/e2e/manifests/Dockerfile.*

imports: install
	@$(VENV)/bin/lint-imports --no-logo

types: install
	@$(PY) -m mypy

pytest: install
	@$(PY) -m pytest $(PYTEST_ARGS)

meta: install
	@$(PY) -m pytest $(PYTEST_ARGS) tests/meta

unit: install
	@$(PY) -m pytest $(PYTEST_ARGS) tests/unit

format: install ## Format the sources and apply the linter's own fixes
	@$(PY) -m ruff check --fix-only --quiet .
	@$(PY) -m ruff format .

proto: install ## Generate proto/src/liftbridge_proto from the .proto files
	@$(PY) proto/generate.py $(if $(BREAKING),--breaking)

crds: install ## Generate deploy/crds from the models of the operator
	@$(PY) -m liftbridge_operator.model.crds

scan: install $(SCANNER)/.installed ## Check what the charts and the operator create, and the Dockerfiles, with checkov
	@$(PY) deploy/scan.py --checkov $(SCANNER)/bin/checkov

$(SCANNER)/.installed: requirements/checkov.txt
	@$(PY) requirements/bootstrap.py --only checkov $(SCANNER)
	@touch $@

lock: install ## Pin all dependencies again from requirements/*.in (UPGRADE=1 takes newer versions)
	@$(PY) requirements/bootstrap.py --lock $(if $(UPGRADE),--upgrade)

changelog: install ## Show what the fragments in changes.d/ will add to CHANGELOG.md
	@$(VENV)/bin/towncrier build --draft --version next

clean: ## Remove everything that is not in the repository: .venv, caches, built documentation
	@if [ -d .cluster/state ]; then tests/e2e/cluster/down.sh; fi
	@rm -rf $(VENV) $(SCANNER) docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache .coverage .bench .cluster
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
