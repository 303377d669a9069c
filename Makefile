# megaflow: "make demo" shows it, "make test" and "make test-slow" prove it. Needs make and Python 3.11 or newer; the rest goes into .venv.

PYTHON ?= python3
ONLY ?=
PART ?=
MINUTES ?= 60
ROTATION ?= $(shell git rev-parse --short=7 HEAD 2>/dev/null || echo 0)    # a hexadecimal number: see tests/rotation.py
VENV := .venv
PEERS := .venv-peers
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.docs-installed
PYTEST := $(BIN)/python -m tests.second_runs -q -n 3 --dist loadgroup    # they wait for other processes a third of their time
UNSTEADY := $(CURDIR)/.cache/unsteady
FAST := not cluster and not spark and not slow

unexport PYTHONDONTWRITEBYTECODE    # or each of the hundreds of processes that the tests start would compile megaflow anew

# Or a seed of a simulation would not be the same run everywhere.
export PYTHONHASHSEED = 0

.DEFAULT_GOAL := help
.PHONY: venv dist docs docs-serve test doctests test-slow test-all soak test-spark test-newest newest-python newest-packages other-pythons fast lint constraints demo bench bench-peers clean help

venv: $(STAMP)  ## create .venv and install megaflow with its tools into it

# Made once, and again when its versions change. A half-made environment never gets the stamp. The two variables have
# pip use the same exact versions for what builds a package: older pips read the first, newer ones the second.
$(STAMP): export PIP_CONSTRAINT := constraints.txt
$(STAMP): export PIP_BUILD_CONSTRAINT := constraints.txt
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "megaflow needs Python 3.11 or newer, '$(PYTHON)' is $$($(PYTHON) --version 2>&1); try: make PYTHON=python3.12" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || { \
	    rm -rf $(VENV); echo "the virtual environment was not made; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "installing into $(VENV) (once; pyspark is several hundred megabytes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(STAMP)

test: $(STAMP)  ## linters, types, floor plan, doctests, every kind of test: real processes and Spark, too (eight minutes)
	@$(MAKE) --no-print-directory -j 2 lint doctests
	@$(PYTEST) -m 'not slow'

# Also compiles the tests, which otherwise each of the test processes would do at the same time.
doctests: $(STAMP)
	@$(BIN)/pytest -q --doctest-modules megaflow --ignore megaflow/cli/templates \
	    $(filter-out tests/test_%.py tests/conftest.py,$(wildcard tests/*.py))
	@$(BIN)/pytest -q --collect-only >/dev/null || true    # the run itself reports an error

test-slow: $(STAMP)  ## slow tests, with a ROTATION of seeds and faults (an hour); PART=3/8 is the third of eight parts (minutes)
	@$(PYTEST) --rotation $(ROTATION) $(if $(PART),--part $(PART)) -m 'slow and not faults' $(ARGS)

test-all: $(STAMP)  ## test, test-slow and test-newest, before a release (some two hours)
	@mkdir -p .cache && rm -f $(UNSTEADY)
	@for target in test test-slow test-newest; do UNSTEADY=$(UNSTEADY) $(MAKE) --no-print-directory PART= $$target || exit 1; done
	@cat $(UNSTEADY) 2>/dev/null || true

soak: test other-pythons newest-packages  ## everything: all seeds, planted faults and kills, MINUTES of random attacks, MINUTES of clicks (some four hours)
	@$(PYTEST) -m 'slow or faults'
	@$(BIN)/python -m tests.attack --minutes $(MINUTES)
	@$(BIN)/python -m tests.attack.watched --minutes $(MINUTES)

test-spark: $(STAMP)  ## all tests of Spark, also the whole table of what can be killed of a job on its executors (half an hour)
	@$(BIN)/pytest -q -m spark

fast: $(STAMP)  ## the suite without real processes, Spark and the slow tests
	@$(PYTEST) -m '$(FAST)'

# Each in an environment of its own, .venv-3.13 and so on. Simulations are the same on each.
OTHERS = $(BIN)/python tests/other_pythons.py
WORDS := -q -n 2 --dist loadgroup -m '$(FAST)' --hypothesis-profile patient --ignore tests/simulation

test-newest: newest-python newest-packages  ## the fast suite on the newest Python, then with the newest and the oldest allowed dependencies

newest-python: $(STAMP)
	@$(OTHERS) --newest $(WORDS)

other-pythons: $(STAMP)  ## the fast suite on each other Python that is installed
	@$(OTHERS) $(WORDS)

# The newest versions are looked up each time, and need not be those of constraints.txt.
newest-packages: $(STAMP)
	@for versions in highest lowest-direct; do \
	    echo "with the versions that uv calls $$versions:"; \
	    $(BIN)/uv venv --quiet --clear --python $(BIN)/python $(VENV)-$$versions \
	        && $(BIN)/uv pip install --quiet --python $(VENV)-$$versions/bin/python --upgrade --resolution $$versions \
	            --build-constraints constraints.txt --editable '.[dev]' \
	        && $(VENV)-$$versions/bin/python -m pytest $(WORDS) || exit 1; \
	done

lint: $(STAMP)  ## ruff, mypy --strict, import-linter
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

# For every Python that pyproject.toml allows, with what builds megaflow and pyspark.
constraints: $(STAMP)  ## write constraints.txt, the exact versions that the targets install, from the newest there are
	@printf 'editables\nhatchling\nsetuptools\n' | $(BIN)/uv pip compile --quiet pyproject.toml - --extra dev --group docs --upgrade \
	    --universal --python-version 3.11 --no-annotate --custom-compile-command 'make constraints' --output-file constraints.txt

dist: $(STAMP)  ## build the wheel and the sdist into dist/, and try the wheel on each Python
	@$(BIN)/python -m tests.dist

demo: $(STAMP)  ## Spark-sourced word count on two processes, half of its bins move; then orders folded on executors
	@$(BIN)/python apps/demo.py

bench: $(STAMP)  ## all workloads beside the plain Python loop and others (some 40 minutes); ONLY=S1,S4; ARGS=--quick
	@$(BIN)/python apps/bench/suite.py $(if $(ONLY),--only $(ONLY)) $(ARGS)

# Each by itself: one that has no wheel here does not keep the other out.
bench-peers:  ## install Bytewax and Pathway into .venv-peers, for make bench to measure beside
	@$(PEERS)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(PEERS)
	@for package in bytewax pathway; do \
	    $(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: $$package \
	        && echo "$$package is installed" \
	        || echo "$$package has no wheel for $$($(PEERS)/bin/python --version); make bench goes on without it" >&2; \
	done

# The tools of the site, with the exact versions of constraints.txt. Only these targets need them.
$(DOCS_STAMP): $(STAMP)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --constraints constraints.txt --group docs
	@touch $(DOCS_STAMP)

docs: $(DOCS_STAMP)  ## build the documentation site into build/site
	@$(BIN)/python docs/build_site.py
	@echo "The site is in build/site: open build/site/index.html"

docs-serve: $(DOCS_STAMP)  ## serve the site at http://localhost:8000, and follow edits
	@$(BIN)/python docs/build_site.py --serve

clean:  ## remove the virtual environments and every cache
	rm -rf $(VENV) $(VENV)-* build dist .cache *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find megaflow apps tests -name __pycache__ -type d -prune -exec rm -rf {} +

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
