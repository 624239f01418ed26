# Footplate: `make serve` runs it, `make test` tests it. Both need only git, make and Python 3.11 or newer with venv.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$p; break; fi; done)
PY := .venv/bin/python
MANAGE := $(PY) manage.py
PYTEST := $(PY) -m pytest

# Only the tools' own settings decide what a check says, not the shell that calls it.
CHECKED := env -u DATABASE_URL -u REDIS_URL -u FOOTPLATE_MODEL -u HOST -u PORT
PRODUCTION := $(CHECKED) FOOTPLATE_TLS=1 FOOTPLATE_DEBUG=0 HOST=0.0.0.0 ALLOWED_HOSTS=footplate.example

.DEFAULT_GOAL := help
.PHONY: help serve check static-checks test test-long environment test-environment python

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | while IFS='	' read -r name text; do printf '  make %-12s %s\n' "$$name" "$$text"; done

serve: environment ## run everything on this machine; Ctrl-C drains and stops it
	@exec $(MANAGE) serve --stop-with-parent

test: test-environment static-checks ## all checks and tests but the longest
	@$(CHECKED) $(PYTEST) -m "not long"

check: test-environment static-checks ## the quick part of `make test`
	@$(CHECKED) $(PYTEST) -q -m "not model and not stack and not long"

test-long: test-environment ## tests that take longer than 20 minutes
	@$(CHECKED) $(PYTEST) -m long

static-checks: test-environment
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -c 'from importlinter.cli import lint_imports_command; lint_imports_command()' --no-logo --no-cache
	@home=$$(mktemp -d) && trap 'rm -rf "$$home"' EXIT && \
	echo "manage.py makemigrations --check; manage.py check --deploy" && \
	FOOTPLATE_HOME=$$home $(CHECKED) $(MANAGE) makemigrations --check --dry-run && \
	FOOTPLATE_HOME=$$home $(PRODUCTION) $(MANAGE) check --deploy --fail-level WARNING

environment: python
	@$(PYTHON) serving/config/virtualenv.py run

test-environment: python
	@$(PYTHON) serving/config/virtualenv.py test

python:
	@if [ -z "$(PYTHON)" ]; then echo "footplate: Python 3.11 or newer is needed; none was found" >&2; exit 1; fi
