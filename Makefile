# Everything happens in .venv, which `make` builds when it is missing or pyproject.toml changed.
# With LOCKED=1 the environment gets the versions of .ci/locked.txt, whose bytes are checked; without, the newest that fit.
# With TEST_OPTIONAL=1 a client or an engine that cannot be installed is reported as NOT RUN instead of failing.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
DEV    := $(VENV)/.ready-dev
VLLM_TESTS := tests/engines/vllm tests/engines/conformance
ADVISORIES := https://pypi.org/pypi/pip/25.0/json
JOBS   ?= $(shell echo $$(($$(nproc) + 1)))
SITE    = $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

.PHONY: run docs site test test-wheel test-extras test-kubernetes test-repeat coverage lock test-deep test-fair fuzz poison test-engines test-hosts test-clients test-ui test-observability test-gateway chaos soak audit lint bench clean

run: $(READY)
	@echo "Starting dynamo-run in=http with the bundled model; Ctrl-C stops it."
	@$(BIN)/dynamo-run in=http $(if $(PORT),--http-port $(PORT))

docs: $(READY)
	@$(BIN)/python docs/update.py

# The guides with a search, in .site/html; fails if a link or an anchor leads nowhere.
site: $(DEV)
	@$(BIN)/python docs/site.py

# In one more process than there are processors, as many tests wait; each has an etcd and a NATS of its own.
test: $(DEV)
	@echo "Running about 6,000 tests, some with real processes, etcd and NATS: about 8 minutes on two quiet processors."
	$(BIN)/python -m pytest -n $(JOBS) --maxprocesses 8 --dist worksteal -m "not hosts and not clients and not ui and not observability and not gateway and not kubernetes and not chaos"

# The same from a fresh clone, PLAIN times as it is and LOADED times beside two busy loops per processor; each run is
# noted in benchmarks/results/test-runs.md.
test-repeat: $(DEV)
	$(BIN)/python benchmarks/test_runs.py --plain $(or $(PLAIN),10) --loaded $(or $(LOADED),10)

# The same tests, then how much of each module they ran, child processes included.
coverage: $(DEV)
	$(BIN)/python -m pytest -n $(JOBS) --maxprocesses 8 --dist worksteal -m "not hosts and not clients and not ui and not observability and not gateway and not kubernetes and not chaos" \
	  --cov --cov-report=term

# Every property with new random examples, then the KV index against its naive model: 50 times 2,000 random sequences
# of events, about 40 minutes.
test-deep: $(DEV)
	$(BIN)/python -m pytest -n $(JOBS) --maxprocesses 8 --hypothesis-profile=deep -m "hypothesis and not ui and not kubernetes and not chaos"
	for seed in $$(seq 50); do \
	  $(BIN)/python -m pytest --hypothesis-profile=deep --hypothesis-seed=$$seed \
	    tests/kv/index/test_kv_index_model.py || exit 1; \
	done

# The bound of fairness: a million random histories over one to four frontends, some hours.
test-fair: $(DEV)
	$(BIN)/python benchmarks/fair_bound.py --histories $(or $(HISTORIES),1000000) --processes $$(nproc) $(if $(COMPILED),--compiled)

# Every parser of bytes from outside, with new mutations for SECONDS; what breaks one is kept in tests/fuzz/kept.
fuzz: $(DEV)
	$(BIN)/python -W ignore tests/fuzz/longer.py --seconds $(or $(SECONDS),3600)

# Deadly requests of one key beside the ordinary ones of another, with real processes: half an hour.
poison: $(DEV)
	$(BIN)/python benchmarks/poison.py

# With vLLM for CPUs, in an environment of its own: 3.5 GB.
test-engines: $(DEV)
	@if tests/engines/install; then \
	    .engines/vllm/bin/python -m pytest $(VLLM_TESTS); \
	  elif [ -n "$$TEST_OPTIONAL" ]; then echo "NOT RUN: the tests of vLLM (vLLM for CPUs cannot be installed; see above)"; \
	  else exit 1; fi

# Two machines on one: needs root and iproute2.
test-hosts: $(DEV)
	$(BIN)/python -m pytest -m hosts

# Well-known clients, each installed from PyPI or npm into .clients/, against dynamo-run.
test-clients: $(DEV)
	@echo "Installing the clients of tests/clients/clients.toml into .clients/ and running them: some minutes."
	@$(BIN)/python tests/clients/install.py
	$(BIN)/python -m pytest -n 2 -m clients tests/clients

# The page in Debian's Chromium, which it installs where it may; Playwright and axe-core go into .ui/.
test-ui: $(DEV)
	@$(BIN)/python tests/ui/install.py
	$(BIN)/python -m pytest -n 2 -m ui tests/ui

# Dashboards and alerts with Debian's Prometheus, which goes into .observability/.
test-observability: $(DEV)
	@$(BIN)/python tests/observability/install.py
	$(BIN)/python -m pytest -m observability tests/observability

# The picker beside a real Envoy, which goes into .gateway/.
test-gateway: $(DEV)
	@$(BIN)/python tests/gateway/install.py
	$(BIN)/python -m pytest -m gateway tests/gateway

# A real control plane in namespaces of its own, built once into .kubernetes/; needs root.
test-kubernetes: $(DEV)
	@if PYTHON=$(abspath $(BIN))/python tests/kubernetes/install; then \
	    $(BIN)/python -m pytest -m kubernetes tests/kubernetes; \
	  elif [ -n "$$TEST_OPTIONAL" ]; then echo "NOT RUN: make test-kubernetes (the control plane cannot be installed; see above)"; \
	  else exit 1; fi

# Faults against real processes, in an order that CHAOS_SEED decides; a failed run prints its seed.
chaos: $(DEV)
	@echo "Asking thousands of requests while workers, connections, etcd and NATS fail: some minutes."
	$(BIN)/python -m pytest -s -m chaos --ignore tests/chaos/test_soak.py tests/chaos tests/cli/test_serve.py

# Load and kills for MINUTES; memory, descriptors and threads of a frontend must not grow with requests.
soak: $(DEV)
	MINUTES=$(or $(MINUTES),15) $(BIN)/python -m pytest -s -m chaos tests/chaos/test_soak.py

# The wheel and the source archive, in dist/, on every Python that is here; with licences and a bill of materials.
test-wheel:
	@.ci/test-wheel

# Every extra has versions that go together.
test-extras:
	@.ci/test-extras

# The versions of all that is installed for tests, with the digests of their bytes: renewed for each release.
lock:
	@$(PYTHON) -m venv .audit && .audit/bin/pip install --quiet --disable-pip-version-check uv
	.audit/bin/uv pip compile --quiet --universal --python-version 3.11 --upgrade --generate-hashes --no-emit-index-url \
	  --custom-compile-command "make lock" --extra dev --output-file .ci/locked.txt pyproject.toml .ci/locked.in

# Known vulnerabilities of what is installed, by PyPI's own list, a page for each version. Only where such pages cannot be
# read is this left out: some mirrors have none.
audit: $(DEV)
	@if ! { $(PYTHON) -m venv .audit && .audit/bin/pip install --quiet --disable-pip-version-check pip-audit; }; then \
	    if [ -n "$$TEST_OPTIONAL" ]; then echo "NOT RUN: make audit (pip-audit cannot be installed)"; else exit 1; fi; \
	  elif .audit/bin/pip-audit --strict --progress-spinner off --skip-editable --path $(SITE) >.audit/log 2>&1; then \
	    cat .audit/log; \
	  elif [ -n "$$TEST_OPTIONAL" ] && ! .audit/bin/python -c "from urllib.request import urlopen; urlopen('$(ADVISORIES)', timeout=60)" 2>/dev/null; then \
	    echo "NOT RUN: make audit (the list of known vulnerabilities cannot be reached)"; \
	  else cat .audit/log; exit 1; fi

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(DEV)
	$(BIN)/python benchmarks/serve.py $(if $(PEER_PYTHON),--peer $(PEER_PYTHON))

clean:
	rm -rf $(VENV) .clients .ui .observability .gateway .kubernetes .audit .wheel .site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Nothing was ever installed into an environment of a Python that is too old, or without pip: it is built anew.
ifeq ($(wildcard $(READY)),)
ifneq ($(wildcard $(VENV)/pyvenv.cfg),)
ifneq ($(shell $(BIN)/python -c 'import sys, pip; print(sys.version_info >= (3, 11))' 2>/dev/null),True)
$(shell rm -rf $(VENV))
endif
endif
endif

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("error: Dynamo needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + "; name another one: make PYTHON=python3.12 …")'
	@echo "Creating $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)

$(READY): pyproject.toml | $(VENV)/bin/python
	@echo "Installing Dynamo and its dependencies into $(VENV): about a minute the first time ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(DEV): pyproject.toml | $(VENV)/bin/python
	@echo "Installing Dynamo with all that its tests need into $(VENV): some minutes the first time ..."
	@if [ -n "$$LOCKED" ]; then \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement .ci/locked.txt && \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .; \
	  else $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'; fi
	@touch $(READY) $@
