# make demo: the main job on a shipped real report. make test: the tests that take minutes at most;
# make test-all: all, with those that compile, start ranks, browsers or notebooks. make test-lowest:
# make test with the lowest versions of what perfmodel needs (Python 3.11 or 3.12); TESTS=tests/readers
# makes both take these alone. make figures: the
# notebooks' figures, as SVG, PDF and PNG with captions, into out/figures. make report: these, and
# the write-up into out/report. make docs: the documentation as a site; make linkcheck asks the
# network whether its links to other sites hold. All need only python3 (3.11 or later) and git: they
# make .venv themselves, with uv where it is installed, else with pip.

PYTHON ?= python3
VENV := .venv
LOWEST := .venv-lowest
BIN := $(VENV)/bin
REPORT := profiles/h200x2_2ranks_base_nsys2025.3.1.sqlite

.PHONY: demo test test-all test-lowest lint docs linkcheck figures report clean
.DELETE_ON_ERROR:

# Two tests run at a time: threads of a BLAS that wait by spinning would take each other's cores.
test test-all test-lowest: export OMP_NUM_THREADS := 1
unexport PYTHONDONTWRITEBYTECODE # else every process that a test starts compiles all anew

demo: $(VENV)/.installed
	$(BIN)/perfmodel analyze $(REPORT) -o out/demo

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not (slow or nsys)" --hypothesis-profile quick $(TESTS)

test-all: $(VENV)/.installed-dev # three at a time, since some wait for ranks, jobs and browsers
	$(BIN)/python -m pytest -q -n 3 --dist loadfile

test-lowest: $(LOWEST)/.installed-dev
	$(LOWEST)/bin/python -m pytest -q -n 2 --dist loadfile -m "not (slow or nsys)" --hypothesis-profile quick $(TESTS)

figures: $(VENV)/.installed-dev
	mkdir -p out/notebooks
	$(BIN)/jupyter execute notebooks/*.ipynb --output="../out/notebooks/{notebook_name}.ipynb"

report: figures
	$(BIN)/python -m writeup

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: figures
	$(BIN)/sphinx-build -q -W --keep-going -c docs . out/docs
	@echo "out/docs/index.html"

linkcheck: $(VENV)/.installed-dev
	$(BIN)/sphinx-build -q -b linkcheck -c docs . out/linkcheck

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else \
	"perfmodel needs Python 3.11 or later, found %d.%d; try: make PYTHON=python3.12 ..." % v[:2])'
	@if command -v uv >/dev/null; then uv venv -q --python $(PYTHON) $(VENV); \
	else $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	echo "python3 has no venv: install it (Debian: apt install python3-venv), or install uv" >&2; \
	exit 1; }; fi

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	@echo "installing perfmodel into $(VENV) ..."
	@if command -v uv >/dev/null; then uv pip install -q --python $(BIN)/python -e .; \
	else $(BIN)/python -m pip install -q --disable-pip-version-check -e .; fi
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	@echo "installing perfmodel and what its tests need into $(VENV) ..."
	@if command -v uv >/dev/null; then uv pip install -q --python $(BIN)/python -e ".[dev]"; \
	else $(BIN)/python -m pip install -q --disable-pip-version-check -e ".[dev]"; fi
	@touch $(VENV)/.installed $@

$(LOWEST)/.installed-dev: pyproject.toml
	@echo "installing the lowest versions that pyproject.toml allows into $(LOWEST) ..."
	@$(PYTHON) -m venv --clear $(LOWEST)
	@$(LOWEST)/bin/python -c 'import tomllib; print(*(said.replace(">=", "==") for said in \
	tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]), sep="\n")' \
	> $(LOWEST)/lowest.txt
	@$(LOWEST)/bin/python -m pip install -q --disable-pip-version-check \
	-c $(LOWEST)/lowest.txt -e ".[dev]"
	@touch $@

clean:
	rm -rf $(VENV) $(LOWEST) out .pytest_cache .mypy_cache .ruff_cache .hypothesis
