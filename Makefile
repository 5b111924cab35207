# One environment for everything: .venv, made by the first target that needs it.

ifndef EXTRAS
EXTRAS := all$(shell timeout 20 nvidia-smi -L 2>/dev/null | grep -q '^GPU ' && echo ,gpu),test
endif
TESTS ?= tests tiledask nbs/[0-9]*.ipynb

BIN := .venv/bin
STAMP := .venv/ready-$(EXTRAS)
# what hangs outside of a test ends here
PYTEST := timeout -k 30 3600 env -u PYTHONDONTWRITEBYTECODE OPENBLAS_NUM_THREADS=1 'MATPLOTLIBRC=$(CURDIR)/.ci/matplotlibrc' \
	PYTHONPATH=.ci$${PYTHONPATH:+:$$PYTHONPATH} $(BIN)/python -m pytest -p kernel_again --nbval-lax --nbval-current-env \
	--nbval-cell-timeout=240 -n 4 --max-worker-restart=0 --dist loadfile --no-loadscope-reorder

.PHONY: help tour test quick style lab bench gpu site env clean

help: ## this list
	@echo "make TARGET, where TARGET is one of"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1	\2/p' Makefile
	@echo "The first one you run sets up .venv (Python 3.11 to 3.13, about 1.6 GB; 3 GB more with a GPU)."

tour: env ## run the whole story on this machine; the page is left in build/tour/
	$(BIN)/tiledask tour

test: env style ## lint, types, tests, docstring examples, README, notebooks (TESTS=tests/plan)
	@mkdir -p build
	$(BIN)/mypy >build/types.txt 2>&1 & types=$$!; tested=0; \
	$(PYTEST) -m "not slow" $(TESTS) || tested=$$?; \
	wait $$types || tested=$$?; cat build/types.txt; exit $$tested

quick: env style ## lint, what people type, laws and golden values: a minute or two
	$(PYTEST) -m "not cluster and not slow" tests/acceptance tests/laws tests/golden

style: env
	$(BIN)/ruff check
	$(BIN)/ruff format --check

# JupyterLab saves what is run, so it is given copies; links from them reach the rest of the checkout.
lab: env ## open your copies of the notebooks, learn/, in JupyterLab (DASHBOARD_PORT=8787 LAB_ARGS=)
	TILEDASK_DASHBOARD_PORT=$(or $(DASHBOARD_PORT),8787) $(BIN)/tiledask notebooks learn --lab $(LAB_ARGS)

bench: env ## products, files, schedules and the search beside their peers on this machine
	$(BIN)/python -m pytest -s -p no:nbval tests/bench

gpu: env ## all that a GPU can tell: right, fast, does it fit; the record is left in build/gpu/
	timeout -k 30 $(or $(GPU_SECONDS),1500) $(BIN)/python -m pytest -q -m gpu -p no:nbval -n 1 --max-worker-restart=20 -o faulthandler_timeout=300 tests/gpu tests

site: env ## the notebooks, run, and the reference as pages: build/site
	$(BIN)/python -m pip install --quiet --constraint constraints.txt -e ".[site]"
	rm -rf build/site build/site-source && mkdir -p build && cp -r nbs build/site-source
	PYTHONPATH=docs $(BIN)/python -m sphinx -q -D nb_execution_mode=force -c docs build/site-source build/site

env: $(STAMP) ## set up .venv and nothing else

.venv/ready-%: pyproject.toml constraints.txt
	@.ci/setup "$*" && touch "$@"

clean: ## remove build/ and caches; .venv and your copies in learn/ stay
	rm -rf build .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find tests tiledask nbs -name __pycache__ -prune -exec rm -rf {} +
