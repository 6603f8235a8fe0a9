# Every target sets up what it needs: Python 3.11 or later is all that must be there.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
ADDRESSES := pyproject.toml $(wildcard docs/ci/*.yml)

.PHONY: scenarios test test-fast bench results mend address figures lint types docs venv node clean

scenarios: venv        ## prove the reference queue and break the naive ones; pytest-benchmark wants a process of its own
	$(BIN)/pytest scenarios/test_throughput.py
	$(BIN)/pytest scenarios -n auto --deselect scenarios/test_throughput.py

test: venv             ## test the harness itself
	$(BIN)/pytest tests -n auto --dist worksteal

test-fast: venv        ## the part of it that needs no server: seconds
	$(BIN)/pytest tests/pure -n auto --dist worksteal

bench: venv node       ## measure jobs/s of strategies and real queues, ten minutes; writes results/
	PYTHONPATH=harness $(BIN)/python -m workshop

results: venv node     ## check every queue of strategies/, or QUEUES='broken/one'; writes results/conformance.md and the stories
	PYTHONPATH=harness $(BIN)/python -m workshop.conformance $(QUEUES)

mend: venv             ## what `check --mend` makes of each broken queue; goes on where it was; writes results/mend.md
	PYTHONPATH=harness:. $(BIN)/python -m workshop.mending

address:               ## `make address OWNER=name`: where the repository is, wherever an address has the placeholder
	@test -n "$(OWNER)" || { echo "make address OWNER=name"; exit 2; }
	sed -i.bak 's,\bOWNER/queueproof,$(OWNER)/queueproof,' $(ADDRESSES)
	rm $(ADDRESSES:=.bak)

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
	@echo "Making $(VENV) with all that the tests need: a minute or two"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'   # -qq: errors alone
	touch $@

clean:
	rm -rf $(VENV) strategies/peers/node_modules build dist site .pytest_cache .ruff_cache .mypy_cache .hypothesis
