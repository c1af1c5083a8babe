# Every target sets itself up: only make and Python 3.11 or newer are needed.

PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3,$(shell command -v $(name) 2>/dev/null)))
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# What the demo needs is a part of it, and much quicker to install; with everything there, nothing more is installed.
DEMO_STAMP := $(VENV)/.installed-demo
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
INSTALL = $(PIP) --editable
# The kernels of engine native. They are built where there is a compiler; without one everything else works.
NATIVE_STAMP := $(VENV)/.installed-native
NATIVE_SOURCES := $(wildcard native/*.* native/src/* native/reference/* native/sentport_native/*)
FUZZ_SECONDS ?= 30

# Evaluation data, where it lies beside the checkout; tests that need it say so when it is unset.
ifneq ($(wildcard ../shared/data),)
export SENTPORT_DATA ?= $(abspath ../shared/data)
endif
export HF_HUB_OFFLINE ?= 1

.PHONY: demo test test-full lint native native-fuzz native-emulated clean

demo: $(DEMO_STAMP) $(NATIVE_STAMP)
	$(BIN)/python -m bench.demo $(DEMO)

# Two workers, a file in one of them: most tests compute in one thread.
test: $(STAMP) $(NATIVE_STAMP)
	$(BIN)/python -m pytest -m "not full" -n 2

test-full: $(STAMP) $(NATIVE_STAMP)
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[dev]'
	@touch $(STAMP) $(DEMO_STAMP)

$(DEMO_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[gpu,bench,demo]'
	@touch $@

native: $(NATIVE_STAMP)

$(NATIVE_STAMP): $(NATIVE_SOURCES) | $(BIN)/python
	@if $(BIN)/python native/can_build.py; then set -ex; \
	  $(PIP) scikit-build-core nanobind cmake ninja; \
	  PATH="$(abspath $(BIN)):$$PATH" $(PIP) --no-build-isolation --no-deps ./native; fi
	@touch $@

# Random models and batches under sanitizers: memory and undefined behaviour, then races of the workers.
native-fuzz:
	for sanitizers in address,undefined thread; do \
	  cmake -S native -B build/fuzz-$$sanitizers -DSENTPORT_FUZZ=ON -DCMAKE_BUILD_TYPE=None \
	    -DCMAKE_CXX_FLAGS="-O1 -g -fno-omit-frame-pointer -fsanitize=$$sanitizers -fno-sanitize-recover=all" && \
	  cmake --build build/fuzz-$$sanitizers --parallel 2 && build/fuzz-$$sanitizers/fuzz $(FUZZ_SECONDS) || exit 1; done

# The levels that this CPU may not have, their instructions in plain C++ (Debian: apt-get install libsimde-dev).
native-emulated:
	cmake -S native -B build/emulated -DSENTPORT_EMULATED=ON && cmake --build build/emulated --parallel 2
	build/emulated/emulated

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "no Python found; install 3.11 or newer (Debian: apt-get install python3 python3-venv)"; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11; run make PYTHON=/path/to/python3.11"; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make environments; Debian: apt-get install python3-venv"; exit 2; }
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
