# SPDX-License-Identifier: Apache-2.0
# Each target makes the virtual environment it needs, from the project's files,
# when it is missing or older than they are. Another Python than python3:
#   make test PYTHON=python3.12
# More arguments of pytest or bazel:
#   make test ARGS='-k router'

PYTHON ?= python3
ARGS ?=
JOBS ?= 2

name := $(notdir $(PYTHON))
VENV := .venv$(if $(filter python3,$(name)),,-$(name))
PARITY := $(VENV)-parity
STORES := $(VENV)-stores
DOCS := $(VENV)-docs
ROCM := .venv-rocm
# pyenv runs another version than its global one only when told so.
python := $(if $(filter python3.%,$(name)),PYENV_VERSION=$(name:python%=%)) $(PYTHON)

.PHONY: help quickstart first-contact speedrun test test-long test-newest mutants lint format parity \
  store-test cluster-test rehearsal rocm-venv rocm-kernels plan-1024 bazel-test bazel-test-all notebooks docs \
  site release lock clean

help:
	@echo 'make quickstart  train a small ZAYA1 model on real text, about 3 minutes'
	@echo 'make first-contact  the first hour on a new GPU: docs/mi300x.md'
	@echo 'make speedrun    seconds to a held-out score beside dense GPTs, on one GPU'
	@echo 'make test        all tests that need no PyTorch'
	@echo 'make test-long   the rest: many processes, many trials, more mutants'
	@echo 'make test-newest a part of the tests with the newest jax, by python3.12'
	@echo 'make mutants     small mistakes in the sources, which tests must see'
	@echo 'make lint        ruff: rules and format; mypy: types'
	@echo 'make format      let ruff write the format'
	@echo 'make parity      compare with the Hugging Face model (installs PyTorch)'
	@echo 'make store-test  object stores: real drivers, servers on this machine'
	@echo 'make cluster-test  Slurm, sshd, poor networks and disks; needs root, Debian'
	@echo 'make rehearsal   the recipe of ZAYA1 in miniature, with kills, 5 minutes'
	@echo 'make rocm-venv   the compiler for --plan.compile=rocm; needs gcc, no GPU'
	@echo 'make rocm-kernels our HIP kernels, for that compiler; needs clang-19'
	@echo 'make plan-1024   a step of ZAYA1-8B compiled for 1,024 MI300X; no GPU'
	@echo 'make bazel-test  Bazel builds all and runs a small test of each library'
	@echo 'make bazel-test-all  all tests once more, by Bazel'
	@echo 'make notebooks   execute the notebooks; pages and pictures: runs/notebooks'
	@echo 'make docs        write docs/flags.md anew'
	@echo 'make site        the pages as a site, links checked: build/site'
	@echo 'make release     build and check a release, say how to tag it; no upload'
	@echo 'make lock        write requirements_lock.txt anew'
	@echo 'make clean       remove environments and caches; keeps runs/'

NVIDIA := /dev/nvidiactl
AMD := /dev/kfd
extra = $(if $(wildcard $(NVIDIA)),cuda13,$(if $(wildcard $(AMD)),rocm7-local))
plugins = $(wildcard $(1)/lib/python*/site-packages/jax_cuda* \
  $(1)/lib/python*/site-packages/jax_rocm*)

say_plugin = $(if $(extra),$(if $(plugins),,echo 'The GPU is not used; for it, \
  run $(1)/bin/python -m pip install "jax[$(extra)]" (docs/install.md).'))

quickstart: $(VENV)/.core
	@$(call say_plugin,$(VENV))
	@$(VENV)/bin/python -m zaya_jax.main --flagfile=configs/quickstart.flags

# Repeated, it goes on where it was: make first-contact ARGS=--contact.minutes=20
first-contact: $(VENV)/.core
	@$(call say_plugin,$(VENV))
	@$(VENV)/bin/python -m zaya_jax.main --mode=contact \
	  --flagfile=configs/zaya1_8b.flags --run_dir=runs/first-contact $(ARGS)

# Goes on where it was; docs/speedrun.md has its rules.
speedrun: $(PARITY)/.parity | runs/corpus
	@$(call say_plugin,$(PARITY))
	@$(PARITY)/bin/python -m benchmarks.speedrun $(ARGS)

runs/corpus: | $(PARITY)/.parity
	@$(PARITY)/bin/python -m benchmarks.corpus --megabytes=500 --output=$@

# A file stays in one process, since its tests share what they have compiled;
# tests/conftest.py says which come first. Three processes keep two cores busy
# while tests wait for what they started; those of test-long fill two.
pytest = $(VENV)/bin/python -m pytest --dist=loadfile --no-loadscope-reorder

test: $(VENV)/.dev
	@$(pytest) -n 3 $(ARGS)

test-long: $(VENV)/.dev
	@$(pytest) -n 2 -m long $(ARGS)

# What a release of jax may break, with the newest of our range: it wants a newer
# Python than the oldest that we allow.
NEWEST := tests/ops/contract_test.py tests/ops/lowering_test.py \
  tests/zaya_jax/train/step_test.py tests/zaya_jax/train/loop_test.py \
  tests/zaya_jax/checkpoint/writing/manager_test.py \
  tests/zaya_jax/checkpoint/reading/reader_test.py \
  tests/zaya_jax/inference/model_test.py

test-newest:
	@$(MAKE) --no-print-directory test ARGS='$(NEWEST) $(ARGS)' \
	  PYTHON=$(if $(filter python3,$(name)),python3.12,$(PYTHON))

mutants: $(VENV)/.dev
	@$(VENV)/bin/python -m tests.mutants.runner --jobs=$(JOBS) $(ARGS)

lint: $(VENV)/.dev
	@$(VENV)/bin/ruff check --quiet .
	@$(VENV)/bin/ruff format --quiet --diff .
	@$(VENV)/bin/mypy

format: $(VENV)/.dev
	@$(VENV)/bin/ruff check --quiet --fix .
	@$(VENV)/bin/ruff format --quiet .

parity: $(PARITY)/.parity
	@$(PARITY)/bin/python -m pytest tests/parity -n 2 --dist=loadfile $(ARGS)

# Servers of S3's and Google's protocols on this machine; an environment of
# its own.
store-test: $(STORES)/.stores
	@$(STORES)/bin/python -m pytest tests/stores $(ARGS)

# Namespaces of Linux with daemons of Debian; the tests say what is missing.
cluster-test: $(VENV)/.dev
	@$(VENV)/bin/python -m pytest tests/cluster $(ARGS)

# With supervision, kills around each save, 1, 2, 4 and 2 processes, an export.
rehearsal: $(VENV)/.core
	@$(VENV)/bin/python -m zaya_jax.main --mode=rehearse \
	  --flagfile=configs/zaya1_8b.flags --recipe=configs/zaya1.toml $(ARGS)

rocm-venv: $(ROCM)/.compiler

# The library that `make -C ops/native rocm` makes by ROCm, made without it. What
# it is linked with is a stand-in: it serves to compile programs that call it.
rocm-kernels: $(ROCM)/.compiler
	@$(MAKE) --no-print-directory -C ops/native PYTHON=$(rocm_python) \
	  build/rocm_root/.complete
	@mkdir -p ops/native/build/rocm_root/lib
	@ln -sf $(abspath $(ROCM))/stubs/libamdhip64.so.7 \
	  ops/native/build/rocm_root/lib/libamdhip64.so
	@$(MAKE) --no-print-directory -C ops/native PYTHON=$(rocm_python) rocm \
	  hipcc='clang++-19 --rocm-path=build/rocm_root'

rocm_python = $(abspath $(ROCM))/bin/python

# As in CI: at most 10 minutes of CPU time and 8 GB, and each contract of the
# step holds.
plan-1024: $(VENV)/.core $(ROCM)/.compiler
	@PYTHONPATH=. $(VENV)/bin/python ci/plan_1024.py

bazel-test bazel-test-all: $(VENV)/.dev
	@ZAYA_PYTHON=$(abspath $(VENV))/bin/python ci/bazel_offline.sh //... \
	  $(if $(filter %-all,$@),,--test_tag_filters=smoke) $(ARGS)

notebooks: $(VENV)/.notebooks
	@$(VENV)/bin/python -m tests.notebooks $(ARGS)

docs: $(VENV)/.core
	@PYTHONPATH=. $(VENV)/bin/python ci/flags_page.py

# Ends with 1 for a link or an anchor that leads nowhere; with --quiet mkdocs
# would not count them.
site: $(DOCS)/.docs
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict $(ARGS)

# Into dist/; docs/contributing.md says what comes before.
release:
	@$(python) ci/release.py

# For Bazel and for exact repetition: every package, with the hashes of its
# files. Python 3.11, the oldest supported, on purpose.
lock: $(VENV)/.dev
	@$(VENV)/bin/python -m pip install -qq uv
	@$(VENV)/bin/uv pip compile --quiet --no-header --no-annotate \
	  --generate-hashes --python-version 3.11 \
	  --python-platform x86_64-manylinux_2_28 --upgrade \
	  requirements-dev.txt --output-file requirements_lock.txt

clean:
	@rm -rf .venv .venv-* build .mypy_cache .pytest_cache .ruff_cache ops/native/build
	@find . -name __pycache__ -prune -exec rm -rf {} +

# --no-compile: Python compiles what is imported, a tenth of what is installed.
define install
	@$(python) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "This Python is older than 3.11; name another: make PYTHON=python3.11")'
	@echo 'Installing $(1) into $(@D), once ...'
	@$(python) -m venv $(@D)
	@$(@D)/bin/python -m pip install -qq --disable-pip-version-check \
	  --no-compile -r $(1)
	@touch $@
endef

$(VENV)/.core: requirements.txt
	$(call install,requirements.txt)

$(VENV)/.dev: requirements-dev.txt requirements-notebooks.txt requirements.txt
	$(call install,requirements-dev.txt)
	@touch $(@D)/.core $(@D)/.notebooks

$(VENV)/.notebooks: requirements-notebooks.txt requirements.txt
	$(call install,requirements-notebooks.txt)
	@touch $(@D)/.core

$(PARITY)/.parity: requirements-parity.txt requirements-dev.txt requirements.txt
	$(call install,requirements-parity.txt)

$(STORES)/.stores: requirements-stores.txt requirements.txt
	$(call install,requirements-stores.txt)

$(DOCS)/.docs: requirements-docs.txt
	$(call install,requirements-docs.txt)

$(ROCM)/.compiler: requirements-rocm.txt zaya_jax/plan/compile/rocm_stubs.py
	$(call install,requirements-rocm.txt)
	@$(ROCM)/bin/python -m zaya_jax.plan.compile.rocm_stubs $(ROCM)/stubs
	@touch $@
