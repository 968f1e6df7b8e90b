# make train: environment, then the embedded digits, in two runs.
# make test: environment, lint, types, docs, tests.
# make table: the main rows of docs/results.md; what is finished is not done again.
PYTHON ?= python3
BIN := .venv/bin
# Tests of a file share compiled functions, so a file stays with one worker; tests/conftest.py orders
# the files.
WORKERS := --numprocesses=auto --maxprocesses=4 --dist=loadfile --no-loadscope-reorder
# Lint and documentation take a core each.
MAKEFLAGS += --jobs=2
MATHEMATICS := tests/test_math_*.py tests/test_layers_*.py

.PHONY: train test table lint docs newer format fast clean

# uv installs in a quarter of the time. Where it finds no packages, as behind a mirror that only pip's
# configuration names, pip installs them.
install = $(1)/bin/uv pip install --quiet --python $(1)/bin/python -r $(2) \
  || $(1)/bin/python -m pip install --quiet -r $(2)

%/requirements:
	$(PYTHON) -m venv $*
	-$*/bin/python -m pip install --quiet uv
	$(call install,$*,$<)
	touch $@

.venv/requirements: requirements.txt

.venv-docs/requirements: requirements-docs.txt

.venv-newer/requirements: requirements-dev.txt requirements.txt

.venv/requirements-dev: requirements-dev.txt .venv/requirements requirements-tensorboard.txt
	$(call install,.venv,$<)
	touch $@

train: .venv/requirements
	$(BIN)/python train.py
	$(BIN)/python train.py --config=configs/digits.py:views

# Runs that hold training images out are scored on the test images afterwards, once after each report.
SCORED_ON_ALL := mnist mnist-quick-views fashion-mnist
SCORED_ON_10000 := cifar10 svhn-quick svhn mnist-40 mnist-places
SCORED := $(foreach row,$(SCORED_ON_ALL) $(SCORED_ON_10000),runs/table/$(row)/scored)

table: .venv/requirements
	$(BIN)/python sweep.py sweeps/table.toml
	$(MAKE) $(SCORED)

$(SCORED): %/scored: %/evaluation/metrics.json
	$(BIN)/python evaluate.py --workdir=$* --split=test \
	  $(if $(filter mnist-40 mnist-places,$(notdir $*)),--dataset=affine_mnist) \
	  --max_examples=$(if $(filter $(notdir $*),$(SCORED_ON_10000)),10000,0)
	touch $@

# The mathematics comes first, as a processor without AVX computes it: tests that pass by the rounding
# of one processor fail here. tests/conftest.py says what else can be asked for.
test: lint docs
	XLA_FLAGS=--xla_cpu_max_isa=SSE4_2 $(BIN)/python -m pytest $(WORKERS) $(MATHEMATICS)
	$(BIN)/python -m pytest $(WORKERS) $(MATHEMATICS:%='--ignore-glob=%')

lint: .venv/requirements-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright

# The pages of docs/, results/ and the docstrings, in site/; the variable hides an announcement.
docs: .venv-docs/requirements
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

# The mathematics and one training on another Python: make newer PYTHON=python3.13
newer: .venv-newer/requirements
	.venv-newer/bin/python -m pytest $(WORKERS) tests/test_math_*.py tests/test_training_loop.py

fast: .venv/requirements-dev
	$(BIN)/python -m pytest $(WORKERS) -m "not slow"

format: .venv/requirements-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .venv-docs .venv-newer site .pytest_cache .ruff_cache .hypothesis
