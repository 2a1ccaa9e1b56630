# Everything that needs no more than git, make and Python 3.11.

PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$name"; break; }; \
	done)
BIN := .venv/bin

.PHONY: help demo screenshots test choice check-proofs prove thorough lint format bench soak lock lock-jars java python dev runtime clean

help:
	@echo "make demo    the whole job on a real local broker, with the proof"
	@echo "make screenshots  the pictures of the dashboard in the docs, from a new demo; needs Chromium"
	@echo "make test    the tests, without the proofs"
	@echo "make check-proofs  one proof of each guarantee, a part of all proofs, some of changed packages"
	@echo "make prove   every guarantee under kills, lost files and other faults, every page of the docs"
	@echo "make thorough  every case of the long matrices, and every benchmark in a short form"
	@echo "make lint    style, types and layers"
	@echo "make format  put the code into the house style"
	@echo "make bench   the figures, beside plain Structured Streaming"
	@echo "make soak    three flows with table care for 45 minutes (MINUTES=..): does anything grow?"
	@echo "make lock    choose newer versions of the Python packages"
	@echo "make java    compile the Java classes for object storage; needs a JDK 17"
	@echo "make clean   remove what these have made here"

demo: runtime
	@$(BIN)/headrace demo $(ARGS)

screenshots: dev
	@rm -rf build/screenshots && mkdir -p build
	@$(BIN)/headrace demo --directory build/screenshots --records 150000 $(ARGS)
	@cd build/screenshots && ../../$(BIN)/headrace verify > /dev/null && ../../$(BIN)/headrace plan > /dev/null
	@$(BIN)/python tools/screenshots.py --project build/screenshots --live

# As many processes as cores and memory allow (tests/workers.py), each with a Spark session and a broker.
PYTEST = $(BIN)/python -m pytest -n auto --dist worksteal

test: dev
	@$(PYTEST) -m "not proof and not thorough" $(ARGS)

choice: python
	@$(PYTHON) tools/choose_proofs.py > /dev/null

check-proofs: dev
	@$(PYTEST) -m "(guarantee or chosen) and not thorough" --chosen "$$($(BIN)/python tools/choose_proofs.py)" $(ARGS)

prove: dev
	@$(PYTEST) -m "proof and not thorough" $(ARGS)

thorough: dev
	@$(PYTEST) -m thorough $(ARGS)
	@$(MAKE) --no-print-directory bench ARGS=--quick

lint: dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: dev
	@for name in latency busy_log catchup noop loop tools demo many planning formats contracts upsert upsert_sizes views care long_log object_storage sinks outward kinesis ui; do $(BIN)/python -m bench.$$name $(ARGS) || exit 1; done

MINUTES ?= 45

soak: dev
	@$(BIN)/python -m bench.soak --minutes $(MINUTES) --picture docs/soak.svg $(ARGS)

# The locks hold names, versions and sums, and no address.
COMPILE = $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-header --no-annotate

lock: dev
	@$(BIN)/python -m pip install --quiet uv
	@$(COMPILE) pyproject.toml --extra test --extra ui --output-file requirements.lock
	@$(COMPILE) pyproject.toml --extra kinesis --extra lineage --extra metrics --extra msk --extra postgres --extra redis --extra s3 --extra traces --extra ui --group dev --constraint requirements.lock --output-file requirements-dev.lock
	@$(COMPILE) --group build --output-file requirements-build.lock

lock-jars: dev
	@$(BIN)/python tools/lock_jars.py

java: dev
	@$(BIN)/python tools/build_java.py

runtime dev: python
	@$(PYTHON) tools/set_up.py $@

python:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer was found; name one: make PYTHON=/path/to/python3"; exit 1; }

clean:
	rm -rf .venv build dist headrace-demo* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
