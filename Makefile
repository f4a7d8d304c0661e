# Everything runs from a private environment that the first target makes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# What is installed beside the core. `make test TRAIN=1` also tests trainers and the small engine, which need torch.
COMMA := ,
EXTRAS := dev,live$(if $(TRAIN),$(COMMA)train)

# With it set, every process compiles anew what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo live-demo test page-test fuzz chaos lint bench figures docs wheel release ui fast plain clean

$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "python3 (3.11 or newer) is needed: apt-get install python3 python3-venv"; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed, found $$($(PYTHON) --version)"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

demo: $(READY)
	$(BIN)/steelyard simulate examples/quickstart.yaml --out runs/demo --overwrite

# 64 GPUs' worth of post-training on emulated engines: an engine is killed, a planner moves GPUs; ends with a page.
live-demo: $(READY)
	$(BIN)/python -m tools.live_demo

test: $(READY) lint
	$(BIN)/python -m pytest -n 2 --dist worksteal

# The local page in Chromium, by itself: about a minute.
page-test: $(READY)
	$(BIN)/python -m pytest tests/ui

# 20,000 hostile and near-valid inputs for all commands and formats; about an hour of CPU time. It can be stopped and goes
# on where it was. Options: make fuzz FUZZ="--cases 500 --seed 7 --workers 1".
fuzz: $(READY)
	$(BIN)/python -m tools.fuzz $(FUZZ)

# 200 runs on emulated engines whose parts die at random moments; some ten minutes.
chaos: $(READY)
	CHAOS=200 $(BIN)/python -m pytest -n 2 tests/live/test_emulated_run.py tests/live/test_pool.py -k chaos

lint: $(READY)
	$(BIN)/ruff check src tests bench studies tools
	$(BIN)/ruff format --check src tests bench studies tools
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m bench

figures: $(READY)
	$(BIN)/python -m studies figures

# The book, in build/docs; its generated pages first. A warning is an error.
docs: $(READY)
	$(BIN)/python -m tools.book
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

wheel: $(READY)
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir dist .

# Builds sdist and wheel, installs the wheel beside nothing else of ours, simulates an example with it, and says what to
# publish. It publishes nothing.
release: $(READY)
	$(BIN)/python -m tools.release dist

# The front end of `steelyard ui`, from its sources in ui/; needs Node. What it makes is committed, so that users need none.
ui:
	cd ui && npm ci --ignore-scripts --no-audit --no-fund && npm run check && npm run build

# The same program with its inner loops compiled, for long runs: same bytes out (which is checked), less time. Tests and
# `make plain` use the sources.
fast: $(READY)
	@command -v cc >/dev/null || { echo "a C compiler is needed: apt-get install gcc python3-dev"; exit 2; }
	STEELYARD_COMPILE=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --force-reinstall .
	$(BIN)/python -m bench.compiled

plain: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .

clean:
	rm -rf $(VENV) build dist runs .mypy_cache .ruff_cache .pytest_cache
