# `make help` lists the targets. Two need no other step: make book, make test.
#
# Choices, all optional:
#   SETUP=torch       PyTorch alone on a newer Python (environment .venv-torch)
#   PYTHON=...        the Python to make the environment with
#   TORCH_INDEX=...   a package index to take torch from, such as that of its CPU builds
#   BACKENDS="torch"  the backends that run the notebooks
#   TESTS=tests/pure  the unit tests to run, instead of all
#   ONLY="ratios"     the tables of the evidence page to make again, instead of all;
#                     or the chapters of test-take-away
#   NEWER=python3.14  the Python of test-take-away, with requirements-torch.lock
#   BESIDE="..."      what else the tests require; "tensorflow horovod" is CI's choice

SETUP ?= full
ifeq ($(SETUP),full)
  VENV := .venv
  BACKENDS ?= torch mxnet paddle
  BESIDE := tensorflow
  FIRST_PYTHON := python3.11
  WANTED := 3.11
else ifeq ($(SETUP),torch)
  VENV := .venv-torch
  BACKENDS ?= torch
  FIRST_PYTHON := python3
  WANTED := 3.13
else
  $(error SETUP=$(SETUP) is unknown; use SETUP=full or SETUP=torch)
endif

ifeq ($(OS),Windows_NT)
  BIN := $(VENV)/Scripts
else
  BIN := $(VENV)/bin
endif
RUN := $(BIN)/python

# The Python to make it with: the one you name, else that of an environment that is
# there, else the first that fits by its name, else one that uv brings.
PYTHON ?= $(if $(wildcard $(RUN)),$(RUN),$(FIRST_PYTHON))
ifeq ($(shell command -v $(PYTHON)),)
  ifneq ($(shell command -v uv),)
    PYTHON := uv run --quiet --no-project --python $(WANTED) python
  endif
endif

LOCK = $(BIN)/uv pip compile --quiet --generate-hashes --no-annotate \
  --custom-compile-command "make lock"

# Three chapters at a time, in the order of chapters/conftest.py: for a third of its time,
# a chapter waits.
THREE_AT_ONCE := -n 3 --dist loadfile --no-loadscope-reorder

BEGAN := $(shell date +%s)
TOOK = $$(($$(date +%s) - $(BEGAN)))

HOST ?= 127.0.0.1
PORT ?= 8000
comma := ,
REQUIRED := $(subst $() ,$(comma),$(strip $(BACKENDS) $(BESIDE)))

export D2LMULTI_SETUP := $(SETUP)
export TORCH_INDEX

# Compiled files are kept, whatever this machine's habit: without them every process
# compiles its framework again, and the tests start hundreds.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup horovod if-horovod book notebooks serve lab test check test-units \
  test-notebooks test-cluster test-posed test-posed-units test-fast coverage test-torch \
  run-all test-take-away check-pages execute evidence release-check lock bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' Makefile
	@echo "  With PyTorch alone, on a newer Python: add SETUP=torch."

setup: ## make or update the environment; the other targets do it for you
	@$(PYTHON) -c "" || { echo "Install Python $(WANTED), or uv, which brings it, or \
	name one: make PYTHON=/path/to/python. SETUP=torch takes newer Pythons."; exit 1; }
	@$(PYTHON) tools/setup_venv.py $(SETUP)

# Compiled once, 3 to 4 minutes; the wheel is kept in the user's cache.
horovod: setup ## build Horovod for MXNet and PyTorch from source
	@$(RUN) tools/build_horovod.py

# The tests want it too, but run without it where it cannot be built, unless BESIDE
# names it.
if-horovod: setup
ifeq ($(SETUP),full)
	@$(RUN) tools/build_horovod.py $(if $(filter horovod,$(BESIDE)),,--if-possible)
endif

# After a build that failed or was stopped, Sphinx would skip the pages it has read, and
# their warnings with them. So only a finished build leaves its notes to the next.
book: setup ## build the HTML, warnings are errors
	@test -e _build/.finished || rm -rf _build/.doctrees
	@rm -f _build/.finished
	$(BIN)/jupyter-book build . -n -W --keep-going
	@touch _build/.finished
	@echo "make book took $(TOOK) s in all."
	@echo "Open file://$(CURDIR)/_build/html/index.html, or run: make serve"

# With BOOK_URL as for the book, they fetch the wheel from there.
notebooks: setup ## notebooks to take away, and their wheel, into _build/notebooks
	@$(RUN) tools/take_away.py

serve: ## show the built book on this machine
	@test -e _build/html/index.html || $(MAKE) book
	@echo "The book is at http://$(HOST):$(PORT) (Ctrl-C ends it)"
	@$(RUN) -m http.server $(PORT) --bind $(HOST) --directory _build/html

lab: setup ## open the chapters in Jupyter and run them by hand
	$(RUN) -m jupyter lab chapters

test: check test-units test-notebooks ## all checks and tests, notebooks on every backend
	@echo "make test took $(TOOK) s in all."

check: setup ## style, types, import layers, sizes
	@echo "== style"
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check --quiet .
	@echo "== types"
	@$(RUN) -m mypy
	@echo "== import layers"
	@$(BIN)/lint-imports --no-logo
	@echo "== sizes"
	@$(RUN) tools/sizes.py

# One thread a process: the tests are many and small, and so are their tensors. The
# set-up holds every backend it should, so here a missing one is a failure, no skip.
test-units: if-horovod ## unit and property tests
	@echo "== unit and property tests"
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} D2LMULTI_REQUIRE=$(REQUIRED) \
	  $(RUN) -m pytest -q -n logical --maxprocesses 8 --dist loadgroup \
	  -m "not (browser or cluster)" $(TESTS)

test-notebooks: if-horovod ## pytest --nbval chapters, once per backend
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} D2LMULTI_REQUIRE=$(REQUIRED) \
	  $(RUN) tools/run_notebooks.py $(BACKENDS) -- $(THREE_AT_ONCE)

# On machines that are network namespaces, with the right to make them; else on one.
# These tests wait for half of their time.
test-cluster: if-horovod ## what happens on clusters: two machines, deaths, strangers
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} D2LMULTI_REQUIRE=$(REQUIRED) \
	  $(RUN) -m pytest -q -n 5 -m cluster tests/processes

# On one GPU, only where tensors are placed can anything differ from two.
ON_DEVICES := data_parallel gpus native_devices operations parts sharded storage strategies \
  training
PLACED := $(ON_DEVICES:%=tests/backends/test_%.py)

test-posed-units: setup ## tests of the backend torch, the CPU posing as 1 and 2 GPUs
	@for gpus in 1 2; do \
	  tests="$(PLACED)"; test $$gpus = 1 || tests=tests/backends; \
	  echo "== unit tests on $$gpus posed GPUs"; \
	  OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} D2LMULTI_POSED=$$gpus \
	    PYTHONPATH=tests/posed:. $(RUN) -m pytest -q -n auto --maxprocesses 8 \
	    --dist loadgroup -m torch $$tests || exit 1; \
	done

test-posed: test-posed-units ## these, and the notebooks on 1, 2 and 8 posed GPUs
	@for gpus in 1 2 8; do \
	  OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} D2LMULTI_POSED=$$gpus \
	    $(RUN) tools/run_notebooks.py torch -- $(THREE_AT_ONCE) || exit 1; \
	done

# What breaks most often, on the two backends that start the quickest, and two chapters.
test-fast: check ## a quick look: NumPy and PyTorch, two notebooks
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} HYPOTHESIS_PROFILE=quick $(RUN) -m pytest \
	  -q -n auto --maxprocesses 8 --dist loadgroup -m "not (slow or mxnet or paddle)" \
	  tests/pure tests/backends
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} D2LMULTI_BACKEND=torch D2LMULTI_QUIET=1 \
	  $(RUN) -m pytest -q --nbval -p no:cacheprovider -n 2 --dist loadfile \
	  chapters/setup.ipynb chapters/data_parallel.ipynb
	@echo "make test-fast took $(TOOK) s in all."

coverage: setup ## which lines no test of NumPy and PyTorch in one process has run
	@OMP_NUM_THREADS=1 $(RUN) -m coverage run --source d2lmulti -m pytest -q \
	  -m "not (slow or mxnet or paddle)" tests/pure tests/backends
	@$(RUN) -m coverage report --skip-covered

test-torch: ## the same tests in the second environment: PyTorch alone, newest NumPy
	@$(MAKE) test SETUP=torch BACKENDS=torch

run-all: if-horovod ## every notebook from top to bottom, as in plain Jupyter
	@for backend in $(BACKENDS); do D2LMULTI_BACKEND=$$backend $(BIN)/jupyter execute \
	  --timeout 120 $(or $(NOTEBOOKS),chapters/*.ipynb) || exit 1; done

# In environments outside the repository; ONLY="setup failures" runs these chapters.
test-take-away: notebooks ## run the notebooks to take away with nothing but their wheel
	@$(RUN) tools/run_take_away.py $(BACKENDS) $(if $(NEWER),--newer $(NEWER)) \
	  $(if $(ONLY),--only $(ONLY))

check-pages: book ## visit every page with Chromium
	@$(RUN) -m pytest -q -n 2 -m browser tests/book
	$(RUN) tools/check_pages.py

execute: if-horovod ## run the notebooks on every backend and store what they print
	$(RUN) tools/execute.py $(NOTEBOOKS)

# Real runs of everything, about 20 minutes: give it a machine that does nothing else.
evidence: if-horovod ## write the evidence page; ONLY="ratios faults" makes these again
	@$(RUN) tools/make_evidence.py $(ONLY)

# Before a release: the evidence was made from this tree, on a quiet machine.
release-check: setup ## may the evidence page be published with this tree?
	@$(RUN) tools/make_evidence.py --check

# No setting of this machine but the network's: whoever locks gets the same files.
lock: setup ## pin and hash all that requirements*.txt bring along
	$(LOCK) requirements.txt -o requirements.lock --python-version 3.11.0 \
	  --python-platform x86_64-manylinux_2_28
	$(LOCK) requirements-torch.txt -o requirements-torch.lock --python-version 3.11.0 \
	  --universal
	$(LOCK) requirements-horovod.txt -o requirements-horovod.lock --universal

bench: setup ## what does an all-reduce cost?
	$(RUN) -m d2lmulti bench allreduce

clean: ## remove what was built, but not the environments
	rm -rf _build .pytest_cache .mypy_cache .ruff_cache .hypothesis \
	  .import_linter_cache
