# `make quickstart` and `make test` are the two commands; both build the environment in .venv first.
# `make` alone builds only the environment. The packages are listed in requirements/cpu.txt.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c

PY := .venv/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
# Two test processes, as the tests run on one thread each; a file's tests stay together and share its engine.
PYTEST := $(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder
SEED ?= 0

.DEFAULT_GOAL := .venv
.PHONY: .venv quickstart bench test test-all lint clean
.venv: .venv/.installed

quickstart: .venv/.installed  ## RL on the tiny shipped model; SEED=n for another seed
	.venv/bin/looprl train recipes/quickstart.yaml --seed $(SEED) \
		--output_dir runs/quickstart-seed$(SEED) --overwrite

bench: .venv/.installed  ## every estimator side by side, and an RL step beside stock TRL
	.venv/bin/looprl bench --json runs/bench.json --figure runs/bench.png

test: lint  ## what CI runs
	$(PYTEST) -m "not slow and not gpu"

test-all: lint  ## the slow tests too, and those for a GPU where there is one
	$(PYTEST) -m "$$($(PY) -c 'import torch; print("" if torch.cuda.is_available() else "not gpu")')"

lint: .venv/.installed
	$(PY) -m ruff check .
	$(PY) -m mypy

clean:  ## caches and build outputs; .venv and runs/ stay
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment. The stamp comes last, so an interrupted install is taken up again by the next make;
# the `find` forgets packages whose unpacking was cut short (pip writes RECORD last), so that pip
# installs them anew instead of taking them for installed.
IS_311 := 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'
PYTHON ?= $(firstword $(foreach p,python3.11 python3,$(shell $(p) -c $(IS_311) 2>/dev/null && echo $(p))))

# pip says several hundred lines: they go to a log, the large downloads to the terminal.
LARGE := s/^ *\(Downloading\|Using cached\) \([^ ]*\) \(([0-9]\{2,\}\.[0-9] MB)\)$$/      \2 \3/p
define pip_install
@$(PIP) install --progress-bar off $(1) 2>&1 | tee -a .venv/install.log \
	| sed -un '$(LARGE); s/^Installing collected packages.*/      unpacking/p' \
	|| { tail -n 30 .venv/install.log >&2; echo "The whole output is in .venv/install.log" >&2; exit 1; }
endef

.venv/.installed: requirements/cpu.txt pyproject.toml
	@if ! $(or $(PYTHON),false) -c $(IS_311); then \
		echo "looprl needs Python 3.11 and found none as python3.11 or python3." >&2; \
		echo "Install it (with venv), or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; fi
	@{ $(PY) -c $(IS_311) && $(PIP) --version; } >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	@find .venv/lib -name '*.dist-info' -type d '!' -exec test -e '{}/RECORD' ';' -prune -exec rm -rf '{}' +
	@rm -f .venv/install.log
	@echo "Building .venv: several minutes the first time, most of them downloading and unpacking."
	@echo "  1/3 torch and what it needs"
	$(call pip_install,-c requirements/cpu.txt setuptools torch)
	@echo "  2/3 the $$(grep -c '^[^#]' requirements/cpu.txt) packages of requirements/cpu.txt"
	$(call pip_install,--no-deps --no-build-isolation -r requirements/cpu.txt)
	@echo "  3/3 looprl itself"
	$(call pip_install,--no-deps --no-build-isolation -e .)
	@touch $@
	@echo "The environment is ready in .venv."
