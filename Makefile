# The newcomer's door: `make replay` or `make test` on a bare Debian 12 install what is missing and
# run. Everything else is in CONTRIBUTING.md; builds are those of CMakePresets.json.

.DEFAULT_GOAL := help
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules

JOBS ?= $(shell nproc)
NVCC := $(shell command -v nvcc || { test -x /usr/local/cuda/bin/nvcc && echo /usr/local/cuda/bin/nvcc; })
# Kernels that nothing here could run take longest to build: without a GPU they are left out.
GPU := $(shell nvidia-smi -L 2>/dev/null | grep '^GPU ')
PRESET ?= $(if $(and $(NVCC),$(GPU)),cuda-sm90a,cpu-release)
BUILD := build/$(PRESET)

# ccache keeps nothing that a precompiled header went into, so it is one or the other.
CONFIGURE_FLAGS := $(if $(shell command -v ccache),-DCMAKE_CXX_COMPILER_LAUNCHER=ccache,-DLINESTATE_PCH=ON)
ifneq ($(filter cuda%,$(PRESET)),)
  CONFIGURE_FLAGS += $(if $(shell command -v ccache),-DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
  CONFIGURE_FLAGS += $(if $(NVCC),-DCMAKE_CUDA_COMPILER=$(NVCC))
endif

TRACE ?= data/mooncake_excerpt.jsonl
MODEL ?= tiny
BENCH_FLAGS ?= --layout 1x1024,mixed
REPLAY_FLAGS ?= --model $(MODEL) --profile mixed --verify 1.0 --plot replay.svg
SANITIZERS ?= asan-ubsan tsan

.PHONY: help setup configure build command replay test cuda bench package installcheck python docs lint tidy format sanitize clean

help:  ## this list
	@echo "make TARGET [PRESET=cpu-release|cpu-debug|cuda-sm90a] [JOBS=n]"
	@sed -n 's/^\([a-z]*\):[^#]*## */  \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 14

setup:  ## install what the build needs (other targets do it by themselves)
	@tools/setup.sh build

configure: setup
	@echo "$(if $(filter cuda%,$(PRESET)),CUDA parts are built too,$(if $(NVCC),$(if $(GPU),,no GPU: )building for CPU only,nvcc not found: building for CPU only)) ($(PRESET))"
	@mkdir -p build
	@cmake --preset $(PRESET) $(CONFIGURE_FLAGS) >$(BUILD).log 2>&1 || { cat $(BUILD).log; \
	  $(if $(filter cuda%,$(PRESET)),echo "To build without CUDA: make $(MAKECMDGOALS) PRESET=cpu-release";) exit 1; }

build: configure  ## the library, the command and the tests
	@cmake --build --preset $(PRESET) -j $(JOBS)
	@ln -sfn $(PRESET)/linestate build/linestate

command: configure
	@cmake --build --preset $(PRESET) -j $(JOBS) --target linestate_command
	@ln -sfn $(PRESET)/linestate build/linestate

replay: command  ## serve a real request trace and verify every answer (TRACE=file MODEL=name)
	$(BUILD)/linestate replay $(TRACE) $(REPLAY_FLAGS)

test: build  ## build everything and run every test
	@tools/run_tests.sh $(PRESET)

cuda: setup  ## compile and link everything that CUDA is in, for sm_80 and Hopper, without running it
	@mkdir -p build
	@cmake --preset cuda-link $(CONFIGURE_FLAGS) \
	  $(if $(NVCC),-DCMAKE_CUDA_COMPILER=$(NVCC)) >build/cuda-link.log 2>&1 || { cat build/cuda-link.log; exit 1; }
	@cmake --build build/cuda-link -j $(JOBS)
	@ctest --test-dir build/cuda-link -N -L gpu | \
	  sed -n 's/^Total Tests: \(.*\)/\1 tests need a GPU and were left out: they were built and linked./p'

bench: command  ## time operators and layers against this machine's limits (BENCH_FLAGS)
	$(BUILD)/linestate bench $(BENCH_FLAGS)

package: configure  ## build/packages: a tarball and a Debian package, to install from
	@cmake --build --preset $(PRESET) -j $(JOBS) --target linestate linestate_shared linestate_command
	@cd $(BUILD) && cpack -B ../packages

installcheck: configure  ## install to a temporary folder and build the examples against it
	@tools/setup.sh package
	@tools/test_install.sh $(PRESET)

python: setup  ## the Python package's wheel, types and tests, in a clean virtual environment
	@tools/setup.sh package
	@tools/test_python.sh $(PRESET)

docs:  ## build/docs/html: the reference and the pages
	@tools/setup.sh docs
	@tools/make_docs.sh

lint:  ## formatting, layers, sizes, names, Python and shell
	@tools/setup.sh lint
	@tools/lint.sh

tidy:  ## clang-tidy (slow; TIDY_BASE=commit: only the folders changed since)
	@tools/setup.sh lint
	@tools/run_tidy.sh $(if $(TIDY_BASE),--base $(TIDY_BASE))

format:  ## rewrite sources the way lint wants them
	@tools/setup.sh lint
	@tools/lint.sh --fix

sanitize:  ## every test under asan+ubsan, then under tsan (slow)
	@tools/setup.sh sanitize
	@tools/sanitize.sh $(SANITIZERS)

clean:  ## remove the builds
	rm -rf build
