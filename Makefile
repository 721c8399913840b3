# The front door. Every target gets the packages it needs first (scripts/setup.sh).

PREFIX       ?= /usr/local
FUZZ_SECONDS ?= 300
LCA_WERROR   ?= OFF
LENGTHS      ?= 1024,2048,4096,8192,16384,32768,65536
LCA          := build/release/bin/lca

configure = cmake --preset $(1) -DLCA_WERROR=$(LCA_WERROR) >build/configure.log || { cat build/configure.log; exit 1; }

.PHONY: help build cuda python test deploy-test goldens model demo plot bench format lint fuzz soak install clean
.DEFAULT_GOAL := help

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build the library and the program: build/release/bin/lca
	@scripts/setup.sh build
	@mkdir -p build
	@$(call configure,release)
	@cmake --build --preset release --target lca lca-cli

cuda: ## build the same with the CUDA kernels: build/cuda/bin/lca (needs nvcc)
	@command -v $${CUDACXX:-nvcc} >/dev/null || { echo "make cuda: nvcc not found; install the CUDA toolkit (13.0) and put its bin folder on PATH, or use make build" >&2; exit 1; }
	@scripts/setup.sh build
	@scripts/cutlass.py
	@mkdir -p build
	@$(call configure,cuda)
	@cmake --build --preset cuda --target lca lca-cli

python: ## build the Python package into build/python/python and test it (environment of 6 GB, once)
	@scripts/setup.sh build python
	@scripts/python.py

test: ## everything: tests, sanitizers, fuzzing, installation, other processors, Python
	@scripts/setup.sh build test python
	@LCA_WERROR=$(LCA_WERROR) scripts/test.py

deploy-test: build model ## two replicas behind Ray Serve and sglang-router (environment of 600 MB, once)
	@tests/deploy/run.sh

goldens: ## make all golden files again in an environment of their own (6 GB, once) and compare
	@scripts/setup.sh build
	@scripts/goldens.py

model: ## fetch the small model that the name smollm2 stands for (94 MiB, once)
	@scripts/setup.sh build
	@scripts/model.py

demo: build model ## read a long document with LCA and with dense attention, and answer a question
	@$(LCA) demo --document assets/demo/lighthouse.txt --document assets/demo/annexes.txt --question "$$(head -n 1 assets/demo/questions.txt)"

plot: build ## LCA against dense attention on this machine over lengths: table and build/demo.svg
	@$(LCA) demo attention --out build/demo.svg

bench: build ## the table of docs/performance.md (LENGTHS=…)
	@$(LCA) bench attention --backend cpu --shape deepseek-v2-lite --lengths $(LENGTHS) --threads 2

format: ## format every source in place
	@scripts/setup.sh lint
	@scripts/format.sh

lint: ## check format and clang-tidy; slow
	@scripts/setup.sh lint
	@scripts/lint.sh

fuzz: ## fuzz each target for FUZZ_SECONDS=300
	@scripts/setup.sh build test
	@FUZZ_SECONDS=$(FUZZ_SECONDS) LCA_WERROR=$(LCA_WERROR) scripts/test.py fuzz

soak: build model ## the strength table of docs/serving.md: load, faults, others' clients (SOAK="--rows kills --minutes 1")
	@scripts/setup.sh build test python
	@scripts/soak.py $(SOAK)

install: build ## install library, headers and program below PREFIX=/usr/local
	@cmake --install build/release --prefix "$(PREFIX)"

clean: ## remove everything that was built
	@rm -rf build
