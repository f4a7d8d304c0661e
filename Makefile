# Everything runs from a private environment that the first target makes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint bench figures clean

$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "python3 (3.11 or newer) is needed: apt-get install python3 python3-venv"; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed, found $$($(PYTHON) --version)"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)
	$(BIN)/steelyard simulate examples/quickstart.yaml --out runs/demo --overwrite

test: $(READY) lint
	$(BIN)/python -m pytest -n 2

lint: $(READY)
	$(BIN)/ruff check src tests bench studies tools
	$(BIN)/ruff format --check src tests bench studies tools
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m bench

figures: $(READY)
	$(BIN)/python -m studies figures

clean:
	rm -rf $(VENV) build dist runs .mypy_cache .ruff_cache .pytest_cache
