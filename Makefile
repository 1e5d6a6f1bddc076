# make demo and make test are all that a fresh clone needs: both set up first.

PY := .venv/bin/python
DISTRIBUTIONS := proto/heddle controller/heddle_controller agents/heddle_agent emulator/heddle_emulator
PYTEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=
LOCK_ARGS ?=
DRILL_ARGS ?=
SOAK_ARGS ?=
FUZZ_ARGS ?=

# Tests start hundreds of Python processes: what these import is compiled once, not by each of them.
# None does linear algebra, for which numpy would have a thread per processor in each of them.
test deep: export PYTHONDONTWRITEBYTECODE :=
test deep: export OPENBLAS_NUM_THREADS := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test deep lint format shape proto lock bench fuzz drills soak deploy-check docs

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## create .venv from requirements.lock, unless it is up to date
	@.ci/setup

demo: setup  ## run jobs, a failure and its repair on this machine (DEMO_ARGS=--keep leaves it running)
	@.venv/bin/heddle-emulator demo $(DEMO_ARGS)

test: setup  ## lint and run every test (PYTEST_ARGS='-k word' selects)
	@$(MAKE) --no-print-directory lint & lint=$$!; \
	.ci/setup test && $(PY) -m pytest tests --ignore=tests/bench --ignore=tests/deploy --ignore=tests/docs -n auto --dist worksteal $(PYTEST_ARGS); tested=$$?; \
	wait $$lint || { echo "lint failed, see above" >&2; exit 1; }; exit $$tested

deep:  ## run the property tests with thousands of fresh cases each (PYTEST_ARGS='-k word' selects)
	@.ci/setup test
	@HEDDLE_TEST_DEPTH=deep $(PY) -m pytest tests --ignore=tests/bench --ignore=tests/deploy --ignore=tests/docs -n auto --dist worksteal -m 'deep or hypothesis' --timeout 7200 $(PYTEST_ARGS)

lint: setup  ## check style, types, import contracts and generated code
	@.venv/bin/ruff check
	@.venv/bin/ruff format --check
	@.venv/bin/mypy $(DISTRIBUTIONS) deploy tests .ci
	@.venv/bin/lint-imports --no-logo
	@$(PY) .ci/proto.py --check
	@.venv/bin/yamllint --strict .

format: setup  ## format every file
	@.venv/bin/ruff check --fix
	@.venv/bin/ruff format

shape: setup  ## print sizes of files and functions; never fails
	@$(PY) .ci/shape.py

proto: setup  ## generate code from proto/heddle/v1
	@$(PY) .ci/proto.py

lock: setup  ## resolve requirements.lock again (LOCK_ARGS=--upgrade takes newer versions)
	@$(PY) .ci/lock.py $(LOCK_ARGS)

bench: setup  ## compare Heddle with other routing methods; writes bench.json (BENCH_ARGS=--quick, --full)
	@$(PY) tests/bench/run.py $(BENCH_ARGS)

fuzz: setup  ## over a million odd inputs for all that reads what strangers write (FUZZ_ARGS='--seed 7')
	@$(PY) -m tests.fuzz.both $(FUZZ_ARGS)

deploy-check: setup  ## all of deploy/, the slow parts too: Debian packages in bare systems, upgrade and roll-back (as root)
	@.ci/setup test
	@$(PY) -m pytest tests/unit/deploy tests/deploy $(PYTEST_ARGS)

docs:  ## the documentation as a site in build/docs/site, with pictures of the page; fails for any broken link
	@.ci/setup docs
	@$(PY) .ci/docs.py

drills: setup  ## play every drill, in virtual time and (as root) on real kernels; reports in drills-report (DRILL_ARGS='--runs 3')
	@.venv/bin/heddle-emulator drill tests/drills/fluid/*.yaml --report drills-report/fluid $(DRILL_ARGS)
	@.venv/bin/heddle-emulator drill tests/drills/netns/*.yaml --report drills-report $(DRILL_ARGS)

soak: setup  ## placements, faults and restarts of replicas for 30 minutes: does anything grow (SOAK_ARGS='--minutes 5 --store sqlite')
	@$(PY) tests/bench/soak.py $(SOAK_ARGS)
