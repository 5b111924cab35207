# One environment for everything: .venv, made by the first target that needs it.
# POSIX sh and any make will do.

ifndef EXTRAS
USED := all$(shell timeout 20 nvidia-smi -L 2>/dev/null | grep -q '^GPU ' && echo ,gpu)
EXTRAS := $(USED),test
endif
USED ?= $(EXTRAS)
DASHBOARD_PORT ?= 8787
LAB_ARGS ?=
BENCH_ARGS ?=
GPU_ARGS ?=
BUNDLE_ARGS ?=
FAULTS_ARGS ?=
SOAK_ARGS ?=
SITE_ARGS ?=
VERSIONS ?=

BIN := .venv/bin
# A stamp per set of extras: a GPU that appears later brings its packages.
STAMP := .venv/ready-$(EXTRAS)
# What people use needs no package for tests; where those are already, or asked for, they will do.
USED_STAMP := $(if $(wildcard $(STAMP))$(filter-out tour lab,$(MAKECMDGOALS)),$(STAMP),.venv/ready-$(USED))
NOTEBOOKS := $(wildcard nbs/*.ipynb)
# it runs every schedule in real time
LONG_NOTEBOOK = nbs/20_run_the_pipeline.ipynb
LATEST_FIRST = $(LONG_NOTEBOOK) $(filter-out $(LONG_NOTEBOOK),$(shell ls -r nbs/*.ipynb))
# nbval takes seconds to load, in every process
PYTEST := $(BIN)/python -m pytest -p no:nbval
# A test that hangs ends its process after 300 s (pyproject.toml), and a process that dies ends the
# run: another one would come to the same test. Whatever else hangs, in collection, at exit, prints
# nothing for this many seconds.
SILENCE ?= 480
ENDING := $(BIN)/python .ci/limit $(SILENCE)
# at a time, of what waits more than it works
WAITING := 4
WORKERS := --max-worker-restart=0 -n
# the files that have such tests: the others need not be read
marked = $(sort $(shell grep -rlE --include='test_*.py' 'pytest.mark.($(1))' tests))
# Or each of hundreds of processes would compile everything for itself.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help tour test quick lint style lab bench bench-matmul bench-files bench-schedules bench-idle bench-search bench-tiles gpu gpu-rehearsal faults soak-faults soak test-long test-versions audit accuracy site env clean

help: ## this list
	@echo "make TARGET, where TARGET is one of"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1	\2/p' Makefile
	@echo "The first one you run sets up .venv (Python 3.11 to 3.13, about 1.4 GB; 3 GB more with a GPU)."

tour: $(USED_STAMP) ## run the whole story on this machine; the report is left in build/tour/
	$(BIN)/tiledask tour

quick: env lint ## lint, types, and every test that is fast and needs no workers: a minute
	OPENBLAS_NUM_THREADS=1 $(ENDING) $(PYTEST) -q -m "not cluster and not slow and not long" $(WORKERS) auto --maxprocesses 8 --dist loadfile tests tiledask

# Nobody shall wait for what takes longest at the end: a minute of the tour, and of faults, clusters
# by hand; the late notebooks, and first the one that waits most.
LONGEST = $(addprefix tests/,lab/tour/test_tour.py lab/faults/test_faults.py \
	distributed/connecting/test_connect.py distributed/connecting/test_two_hosts.py \
	distributed/cluster/test_cluster.py acceptance/test_typed_readme.py)
LONGEST_FIRST = $(LONGEST) $(filter-out $(LONGEST),$(call marked,cluster))

# What needs no workers runs on all cores at once; four files of tests with workers or
# four notebooks at a time, which wait more. Threads of BLAS that wait for each other on busy cores
# take them from everybody. Types are read beside the first tests, and told after them.
test: env style ## lint, unit tests, docstring examples, the README's commands, the notebooks
	@mkdir -p build
	$(BIN)/mypy >build/types.txt 2>&1 & types=$$!; tested=0; \
	OPENBLAS_NUM_THREADS=1 $(ENDING) $(PYTEST) -m "not cluster and not slow" $(WORKERS) auto --maxprocesses 8 --dist loadfile tests tiledask || tested=$$?; \
	wait $$types || tested=$$?; cat build/types.txt; exit $$tested
	$(ENDING) $(PYTEST) -m "cluster and not slow" $(WORKERS) $(WAITING) --dist loadfile --no-loadscope-reorder $(LONGEST_FIRST)
	OPENBLAS_NUM_THREADS=1 PYTHONPATH=.ci $(ENDING) $(BIN)/python -m pytest -p kernel_again --nbval-lax --nbval-current-env --nbval-cell-timeout=240 $(WORKERS) $(WAITING) --dist loadscope --no-loadscope-reorder $(LATEST_FIRST)
	@echo "make test: all passed: lint, tests, docstring examples, $(words $(NOTEBOOKS)) notebooks"

lint: env style ## ruff: rules and format; mypy: types
	$(BIN)/mypy

style: env
	$(BIN)/ruff check
	$(BIN)/ruff format --check

# JupyterLab saves what is run, so it is given copies; links from them reach the rest of the checkout.
lab: $(USED_STAMP) ## open your copies of the walkthroughs, learn/, in JupyterLab (DASHBOARD_PORT=8787 LAB_ARGS=)
	TILEDASK_DASHBOARD_PORT=$(DASHBOARD_PORT) $(BIN)/tiledask notebooks learn --lab $(LAB_ARGS)

bench: env ## compare with peers on this machine: one product, about a minute
	$(BIN)/python -m tiledask.lab.bench.product

bench-matmul: env ## the whole comparison of products, half an hour
	$(BIN)/python -m tiledask.lab.bench.product --works all

bench-files: env ## the comparison of products of files: 6 GB through workers of 1 GB
	$(BIN)/python -m tiledask.lab.bench.files

bench-schedules: env ## schedules of up to 16.8 million actions (BENCH_ARGS="--python PY --vic PATH")
	$(BIN)/python -m tiledask.lab.bench.schedules $(BENCH_ARGS)

bench-idle: env ## idle time of every schedule on workers, measured and simulated: ten minutes
	$(BIN)/python -m tiledask.lab.bench.idle $(BENCH_ARGS)

bench-search: env ## the search of all layouts beside calculon's (BENCH_ARGS="--calculon PATH")
	$(BIN)/python -m tiledask.lab.bench.search $(BENCH_ARGS)

bench-tiles: env ## tile kernels beside cuBLAS, torch, Triton: a GPU (or BENCH_ARGS="--arrays numpy")
	$(BIN)/python -m tiledask.lab.bench.tiles $(BENCH_ARGS)

gpu: env ## all that a GPU can tell, on one page: right, fast, does it fit (GPU_ARGS="--minutes 9")
	$(BIN)/python -m tiledask.lab.gpu $(GPU_ARGS)

gpu-rehearsal: env ## make gpu end to end without a GPU, on a stand-in for CuPy: five minutes
	$(ENDING) $(PYTEST) -s -m slow tests/lab/gpu/test_gpu_rehearsal.py

faults: env ## every fault that is promised to be borne, into a real cluster (FAULTS_ARGS="--load 10")
	$(BIN)/python -m tiledask.lab.faults.command $(FAULTS_ARGS)

soak-faults: env ## 50 lost workers a minute for half an hour (SOAK_ARGS="--minutes 5"): is anything left?
	$(BIN)/python -m tiledask.lab.faults.soak $(SOAK_ARGS)

# Files of tests, one per core: rehearsals of make gpu and soaks are apart.
SLOW_FILES = $(filter-out tests/lab/gpu/test_gpu_rehearsal.py,$(call marked,slow|few))

soak: env ## what takes minutes: all drawn cases, all faults, 50 steps under every layout of 2 to 8 ranks
	$(ENDING) $(PYTEST) -m slow $(WORKERS) 2 --dist loadfile $(SLOW_FILES)

test-long: soak gpu-rehearsal ## what make test leaves out because it takes long: at most 40 minutes

test-versions: env ## the oldest and the newest Dask and NumPy allowed, other Pythons: build/versions/
	$(BIN)/python .ci/versions.py $(VERSIONS)

audit: ## known vulnerabilities of the packages in constraints.txt (asks pypi.org)
	python3 .ci/audit.py

accuracy: env ## the planner against every published number: data/published/ACCURACY.md
	$(BIN)/python -m tiledask.lab.accuracy.page

site: $(STAMP) .venv/site ## the walkthroughs, run, and the reference as pages: build/site (SITE_ARGS=--stored)
	$(BIN)/python -m tiledask.lab.site.build $(SITE_ARGS)

# what makes pages comes on top: tests and walkthroughs do without it
.venv/site: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt -e ".[site]"
	@touch $@

env: $(STAMP) ## set up .venv and nothing else

# Unfinished set-ups leave no stamp, and the next one starts from nothing.
.venv/ready-%: pyproject.toml constraints.txt
	@.ci/setup "$*" && touch "$@"

clean: ## remove build/ and caches; .venv and your copies in learn/ stay
	rm -rf build .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find tests tiledask nbs -name __pycache__ -prune -exec rm -rf {} +
	find nbs -name .ipynb_checkpoints -prune -exec rm -rf {} +
