# Every target sets up what it needs: Python 3.11 or later is all that must be there.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: scenarios test test-fast bench results figures lint types docs venv node clean

scenarios: venv        ## prove the reference queue and break the naive ones
	$(BIN)/pytest scenarios

test: venv             ## test the harness itself
	$(BIN)/pytest tests -n auto --dist worksteal

test-fast: venv        ## the part of it that needs no server: seconds
	$(BIN)/pytest tests/pure -n auto --dist worksteal

bench: venv            ## measure jobs/s per strategy, batch size and workers; writes results/
	PYTHONPATH=harness $(BIN)/python -m workshop

results: venv node     ## check every queue of strategies/; writes results/conformance.md and the stories
	PYTHONPATH=harness $(BIN)/python -m workshop.conformance

figures: venv          ## the harness's own speed: schedules beside isolationtester, checked events
	PYTHONPATH=harness $(BIN)/python -m workshop.permutations
	PYTHONPATH=harness $(BIN)/python -m workshop.checker

lint: venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: venv
	$(BIN)/mypy

docs: venv             ## the site, strictly: every link and anchor leads somewhere; writes site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build   # --quiet would let warnings pass

node: strategies/peers/node_modules/.package-lock.json

strategies/peers/node_modules/.package-lock.json: strategies/peers/package-lock.json
	npm ci --prefix strategies/peers --no-audit --no-fund

venv: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) strategies/peers/node_modules build dist site .pytest_cache .ruff_cache .mypy_cache .hypothesis
