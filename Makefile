# graynode: make help
PYTHON ?= python3
PY := .venv/bin/python
PYTEST := $(PY) -I -m pytest
PACKAGES := collectors pipeline detectors responders dashboards service
KILLS ?= 5
JOBS ?= 2
DATA ?= data
SEED ?= 1

.DEFAULT_GOAL := help
.PHONY: help dev run test test-long check bench bench-demo bench-detection docs site wheel steps-wheel wheel-test lock clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

.venv/.server: requirements-dev.lock pyproject.toml
	@deploy/dev/packages run
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "graynode: Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; say make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(PY) -m pip install -q --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@PYTHONWARNINGS=ignore $(PY) -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@mkdir -p .venv/typing && ln -sfn ../.. .venv/typing/graynode
	@touch $@

dev: .venv/.server ## virtual environment with everything a developer needs

run: .venv/.server ## the main job on this machine: live host metrics, a simulated fleet, what was found and why
	.venv/bin/graynode up

test: .venv/.server ## every suite, real components included (≤ 15 minutes on 2 cores)
	@deploy/dev/packages test
	GRAYNODE_KILLS=$(KILLS) $(PYTEST) -m "not long" -n $(JOBS) --dist loadfile --no-loadscope-reorder

test-long: .venv/.server ## the suites that take minutes each
	@deploy/dev/packages test
	GRAYNODE_KILLS=30 $(PYTEST) -m long --timeout 3600

check: .venv/.server ## lint, format, types, import directions, generated documents
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy $(PACKAGES:%=-p graynode.%) -p graynode.benchmarks.detection
	.venv/bin/lint-imports
	$(PY) -I -m graynode.pipeline.contract_page --check docs/metrics.md
	$(PY) -I -m graynode.service.commands_page --check docs/commands.md
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet

docs: .venv/.server ## write docs/metrics.md from the contract and docs/commands.md from the command line
	$(PY) -I -m graynode.pipeline.contract_page docs/metrics.md
	$(PY) -I -m graynode.service.commands_page docs/commands.md

site: .venv/.server ## build the documentation site into build/site
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet

bench: .venv/.server ## agent, pipeline, detection and hard-event benchmarks; they print machine, versions, seed and command
	$(PY) -I benchmarks/speed/agent.py
	$(PY) -I benchmarks/speed/pipeline.py
	$(PY) -I benchmarks/speed/detection_rounds.py
	$(PY) -I benchmarks/speed/hard_event.py

bench-demo: .venv/.server ## what is found in the demonstration's fleet, against its truth, on three seeds
	$(PY) -I benchmarks/speed/demo_accuracy.py --seeds 1 2 3

bench-detection: .venv/.server ## every detection track; DATA=folder of gpu-variability, straggler-trace, … (docs/evaluation.md)
	@mkdir -p build/evaluation
	.venv/bin/graynode evaluate slow --data $(DATA)/gpu-variability --seed $(SEED) --json build/evaluation/slow.json
	.venv/bin/graynode evaluate attribution --data $(DATA)/straggler-trace --seed $(SEED) --json build/evaluation/attribution.json
	.venv/bin/graynode evaluate attribution --data $(DATA)/alibaba-minibatch --seed $(SEED) --json build/evaluation/minibatch.json
	.venv/bin/graynode evaluate lemons --data $(DATA)/InfiniteHBD-Trace --seed $(SEED) --json build/evaluation/lemons.json
	.venv/bin/graynode evaluate host --data $(DATA)/SMD --seed $(SEED) --json build/evaluation/host.json
	.venv/bin/graynode evaluate fleet --seed $(SEED) --json build/evaluation/fleet.json

wheel: .venv/.server ## build the wheel into dist/
	rm -rf build dist
	$(PY) -m build --no-isolation --wheel --outdir dist .

steps-wheel: .venv/.server ## build graynode-steps, the one-file client of step times, into dist/
	rm -rf build/steps && mkdir -p build/steps && cp deploy/steps/pyproject.toml LICENSE build/steps
	cp collectors/steps.py build/steps/graynode_steps.py
	$(PY) -m build --no-isolation --wheel --outdir dist build/steps

wheel-test: wheel ## install the wheel where there are no sources and use it
	$(PY) -I tests/wheel_test.py dist/*.whl

lock: ## refresh the hashed lock file
	.venv/bin/pip-compile -q --extra server --extra kubernetes --extra dcgm --extra grafana --extra docs --extra dev --generate-hashes --allow-unsafe --strip-extras --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-header -o requirements-dev.lock pyproject.toml

clean: ## remove what was built; data of `make run` stays
	rm -rf build dist .venv .mypy_cache .ruff_cache .pytest_cache *.egg-info
