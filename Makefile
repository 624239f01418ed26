# Footplate: `make serve` runs it, `make test` tests it. Both need only git, make and Python 3.11 or newer with venv.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$p; break; fi; done)
PY := .venv/bin/python
MANAGE := $(PY) manage.py
FRONTEND := $(PY) serving/config/frontend.py
PYTEST := $(PY) -m pytest

# Only the tools' own settings decide what a check says, not the shell that calls it.
CHECKED := env -u PYTHONDONTWRITEBYTECODE -u DATABASE_URL -u REDIS_URL -u FOOTPLATE_MODEL -u FOOTPLATE_POOLS -u HOST -u PORT
PRODUCTION := $(CHECKED) FOOTPLATE_TLS=1 FOOTPLATE_DEBUG=0 HOST=0.0.0.0 ALLOWED_HOSTS=footplate.example

# Quick tests run side by side, each process with one thread of arithmetic where a test asks for no more, and so do those
# that wait, a module at a time, since servers are started for modules. Whole stacks wait for each other's processes more
# than they compute. What computes, in which no moment counts, takes the processor time that the others leave.
QUICK := not model and not stack and not browser and not waits and not heavy and not long
WHOLE := (stack and model or browser)
SLOW := not ($(QUICK)) and not $(WHOLE) and not long
COMPUTING := tests/engine tests/gateway/text
RUN_QUICK := $(CHECKED) OMP_NUM_THREADS=1 $(PYTEST) -q -n 3 --dist worksteal -m "$(QUICK)"
RUN_WAITING := $(CHECKED) OMP_NUM_THREADS=1 $(PYTEST) -q -n 3 --dist loadscope --no-loadscope-reorder -m "$(SLOW)" \
	$(COMPUTING:%=--ignore=%)
RUN_WHOLE := $(CHECKED) $(PYTEST) -m "$(WHOLE) and not long"
RUN_COMPUTING := $(CHECKED) OMP_NUM_THREADS=1 $(PYTEST) -q -n 2 --dist loadscope --no-loadscope-reorder -o timeout=1200 \
	-m "$(SLOW)" $(COMPUTING)
STATIC := $(MAKE) --no-print-directory static-checks script-tests
BESIDE := @$(PY) tests/side_by_side.py

.DEFAULT_GOAL := help
.PHONY: help serve bench bench-peers bench-console bench-door bench-lab bench-gpu
.PHONY: check static-checks script-tests test test-long environment test-environment test-model frontend test-frontend browser python

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | while IFS='	' read -r name text; do printf '  make %-12s %s\n' "$$name" "$$text"; done

serve: frontend ## run everything on this machine; Ctrl-C drains and stops it
	@exec $(MANAGE) serve --stop-with-parent

test: test-frontend browser test-model ## all checks and tests but the longest
	$(BESIDE) '$(STATIC) && $(RUN_QUICK) && $(RUN_WAITING) && $(RUN_WHOLE)' '$(RUN_COMPUTING)'

check: test-frontend ## the quick part of `make test`
	$(BESIDE) '$(STATIC)' '$(RUN_QUICK)'

test-long: test-frontend browser ## tests that take longer than 20 minutes
	@$(CHECKED) $(PYTEST) -m long

bench: test-frontend ## measure the engine beside every installed peer; options in BENCH, e.g. BENCH=--quick
	@$(CHECKED) $(PY) -m tests.bench $(BENCH)

bench-peers: test-environment ## install what `make bench` compares with, under PEERS_HOME or .peers
	@$(PY) -m tests.bench.install

bench-console: test-frontend browser ## measure what the console costs browser and web process
	@$(CHECKED) $(PY) -m tests.e2e.bench_console
	@$(CHECKED) $(PY) -m tests.e2e.bench_loading

bench-door: test-frontend ## measure overload and flood at the door of the whole product; BENCH=--quick to see that it works
	@$(CHECKED) $(PY) -m tests.e2e.bench_door $(BENCH)

bench-lab: test-frontend ## measure how far the Lab's simulator is from the real product; BENCH=--quick to see that it works
	@$(CHECKED) $(PY) -m tests.lab.bench_simulator $(BENCH)

bench-gpu: test-environment ## check the kernels on this machine's GPU, and measure the engine beside the GPU's limits
	@$(CHECKED) $(PY) -m serving.engine.bench.gpu $(BENCH)

script-tests: test-frontend
	@$(FRONTEND) node --test --test-reporter=spec tests/js/*.test.js

static-checks: test-frontend
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(FRONTEND) node node_modules/typescript/bin/tsc --project jsconfig.json
	$(PY) -c 'from importlinter.cli import lint_imports_command; lint_imports_command()' --no-logo --no-cache
	@home=$$(mktemp -d) && trap 'rm -rf "$$home"' EXIT && \
	echo "manage.py makemigrations --check; manage.py check --deploy" && \
	FOOTPLATE_HOME=$$home $(CHECKED) $(MANAGE) makemigrations --check --dry-run && \
	FOOTPLATE_HOME=$$home $(PRODUCTION) $(MANAGE) check --deploy --fail-level WARNING

environment: python
	@$(PYTHON) serving/config/virtualenv.py run

test-environment: python
	@$(PYTHON) serving/config/virtualenv.py test

frontend: environment
	@$(FRONTEND) run

test-frontend: test-environment
	@$(FRONTEND) test

test-model: test-environment
	@$(CHECKED) $(PY) -m tests.default_model

browser: test-environment
	@$(PY) tests/browsers.py

python:
	@if [ -z "$(PYTHON)" ]; then echo "footplate: Python 3.11 or newer is needed; none was found" >&2; exit 1; fi
