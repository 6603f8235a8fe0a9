# Every target sets up what it needs and no more: Python 3.11 or later is all that must be there.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
with    = $(addprefix $(VENV)/.with-,$(1))  # extras of pyproject.toml
ADDRESSES := pyproject.toml $(wildcard docs/ci/*.yml)
WITHOUT_MORE := not browser and not container and not node and not pgbouncer

unexport PYTHONDONTWRITEBYTECODE  # some machines set it, and each of hundreds of processes compiles all anew

.PHONY: scenarios test test-all test-fast bench results mend address release figures lint types docs venv node clean
.NOTPARALLEL:  # two pips in one environment

scenarios: $(call with,test)  ## prove the reference queue and break the naive ones; pytest-benchmark wants a process of its own
	$(BIN)/pytest scenarios/test_throughput.py
	$(BIN)/pytest scenarios -n auto --deselect scenarios/test_throughput.py

test: $(call with,test bench)  ## test the harness itself: what needs no server or one, and one of each slow kind
	$(BIN)/pytest -n auto --dist worksteal

test-all: $(call with,test bench cluster container peers)  ## all of its tests that need no more than Python
	$(BIN)/pytest tests -n auto --dist worksteal -m "$(WITHOUT_MORE)"

test-fast: $(call with,test bench)  ## those that need no server: seconds
	$(BIN)/pytest tests/pure -n auto --dist worksteal

bench: $(call with,bench peers) node       ## measure jobs/s of strategies and real queues, ten minutes; writes results/
	PYTHONPATH=harness $(BIN)/python -m workshop

results: $(call with,peers) node     ## check every queue of strategies/, or QUEUES='broken/one'; writes results/conformance.md and the stories
	PYTHONPATH=harness $(BIN)/python -m workshop.conformance $(QUEUES)

mend: $(call with,bench)             ## what `queueproof mend` makes of each broken queue; goes on where it was; writes results/mend.md
	PYTHONPATH=harness:. $(BIN)/python -m workshop.mending

address:               ## `make address OWNER=name`: where the repository is, wherever an address has the placeholder
	@test -n "$(OWNER)" || { echo "make address OWNER=name"; exit 2; }
	sed -i.bak 's,\bOWNER/queueproof,$(OWNER)/queueproof,' $(ADDRESSES)
	rm $(ADDRESSES:=.bak)

release: $(call with,release)  ## what an index takes, in dist/: README's links made addresses, built, checked
	@! grep -q '\bOWNER/queueproof' pyproject.toml || { echo "first: make address OWNER=name"; exit 2; }
	rm -rf build/release dist
	git clone -q . build/release
	address=$$(sed -n 's/^Source = "\(.*\)"/\1/p' pyproject.toml) && cd build/release && sed -i -E \
	  -e "s,\]\((docs/assets/),]($$address/raw/HEAD/\1," \
	  -e "s,\]\((docs|harness|results|strategies|action\.yml|[A-Z]+\.md),]($$address/blob/HEAD/\1,g" README.md
	cd build/release && ../../$(BIN)/python -m build --outdir ../../dist
	$(BIN)/twine check --strict dist/*
	@echo "Left to do: tag it and push the tag; $(BIN)/twine upload dist/*; then have errors.to_install, README and docs name the index"

figures: $(call with,bench)          ## README's picture; the harness's own speed: a load beside pgbench, schedules beside isolationtester
	PYTHONPATH=harness:. $(BIN)/python -m workshop.drawing
	PYTHONPATH=harness $(BIN)/python -m workshop.permutations
	PYTHONPATH=harness $(BIN)/python -m workshop.yardstick

lint: $(call with,dev)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(call with,dev)
	$(BIN)/mypy

docs: $(call with,docs)             ## the site, strictly: every link and anchor leads somewhere; writes site/
	PYTHONPATH=harness $(BIN)/python -m workshop.guarantees
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build   # --quiet would let warnings pass

node: strategies/peers/node_modules/.package-lock.json

strategies/peers/node_modules/.package-lock.json: strategies/peers/package-lock.json
	npm ci --prefix strategies/peers --no-audit --no-fund

venv: $(call with,test bench cluster container peers docs dev)  ## all of it, for who works on the project

$(VENV)/.with-%: pyproject.toml constraints.txt | $(VENV)
	@echo "Installing into $(VENV) what '$*' needs"
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[$*]'
	touch $@

$(VENV):
	@echo "Making $(VENV)"
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) strategies/peers/node_modules build dist site .pytest_cache .ruff_cache .mypy_cache .hypothesis
