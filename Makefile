# Needs cargo, a C compiler and make.
#   make demo      several prompts stream at once from the model inside the library
#   make test      everything that is tested (needs a C++ compiler too, and ASan or valgrind)
#   make bench     the machine's limits, each kernel's share of them, throughput by batch size, the engine's own cost
#                  (QUICK=1: minutes less; BENCH_ARGS: for target/c/bench; docs/performance.md)
#   make install   PREFIX=/usr/local DESTDIR=
#   make header    regenerate include/bn_engine.h from src/ffi
#   make parity    write docs/parity.md: how near the numbers are to the references'
#   make tsan      the engine's tests under ThreadSanitizer, std and all (a nightly with rust-src; ten minutes)
#   make lint, make clean

CARGO ?= cargo
CXX ?= c++
GO ?= go
CMAKE ?= cmake
PKG_CONFIG ?= pkg-config
VALGRIND ?= valgrind
OBJCOPY ?= objcopy
PREFIX ?= /usr/local
DESTDIR ?=
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
BINDIR ?= $(PREFIX)/bin
# release or dev
PROFILE ?= release
# For `make bench`: QUICK=1, a number of threads, arguments of target/c/bench
QUICK ?=
BENCH_THREADS ?=
BENCH_ARGS ?=
BENCH_FLAGS = $(if $(QUICK),--quick) $(if $(BENCH_THREADS),--threads $(BENCH_THREADS))

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
MAJOR := $(firstword $(subst ., ,$(VERSION)))
RUST := $(abspath target)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
C := target/c
STAGE := $(abspath $(C)/stage)

CFLAGS ?= -O2 -g
WARN := -Wall -Wextra -Werror -pedantic
C11 := -std=c11 $(WARN) -Iinclude
CXX17 := -std=c++17 $(WARN) -Iinclude
LINK := -L$(RUST) -lbn_engine -Wl,-rpath,$(RUST) -lpthread
# What the static library needs beside itself.
STATIC_LIBS := -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc

EXAMPLES := hello demo callbacks event_loop embed bench
C_TESTS := $(wildcard tests/c/test_*.c) tests/c/harness.c
C_TEST_FLAGS := $(C11) -D_GNU_SOURCE -DBN_DEMO_MODEL='"$(abspath models/bn-demo.gguf)"' \
	-DBN_DEMO_PROMPTS='"$(abspath tests/golden/demo_prompts.json)"' -DBN_GOLDEN_MODELS='"$(abspath tests/golden/models)"'
SYMBOLS := tests/abi/symbols.txt

comma := ,
say = @printf '\n== %s\n' "$(1)"

.PHONY: all lib convert examples demo bench header parity lint clean install
.PHONY: test test-rust test-loom test-arm test-c test-checked test-abi test-install tsan

all: lib convert examples

# Where there is no cargo (sudo make install), what is built already will do.
lib:
	@if command -v $(CARGO) > /dev/null || [ ! -f $(RUST)/libbn_engine.so ]; then \
		$(CARGO) build --profile $(PROFILE) --lib; \
	fi
	@ln -sf libbn_engine.so $(RUST)/libbn_engine.so.$(MAJOR)
	@mkdir -p $(C)

convert: lib
	@if command -v $(CARGO) > /dev/null || [ ! -f $(RUST)/bn-convert ]; then \
		$(CARGO) build --profile $(PROFILE) --bin bn-convert; \
	fi

examples: $(EXAMPLES:%=$(C)/%)

$(C)/%: examples-c/%.c include/bn_engine.h | lib
	@$(CC) $(C11) -D_GNU_SOURCE $(CFLAGS) $< -o $@ $(LINK)

demo: $(C)/demo
	@$(C)/demo

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

header:
	$(CARGO) check --quiet --lib
	@cp "$$(ls -t target/debug/build/bn-engine-*/out/bn_engine.h | head -n 1)" include/bn_engine.h

parity:
	$(CARGO) test --quiet --test all model_parity:: -- --ignored document
	@echo "docs/parity.md is written"

lint:
	$(CARGO) fmt --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	@CARGO=$(CARGO) tests/features.sh

clean:
	$(CARGO) clean

# -- tests ------------------------------------------------------------------------------------------

test: test-rust test-loom test-arm test-c test-checked test-abi test-install
	$(call say,everything passed)

test-rust:
	$(call say,Rust: unit and integration tests$(comma) header$(comma) layout$(comma) layers)
	$(CARGO) test

# What crosses threads, without candle: loom runs every interleaving, Miri looks for undefined behaviour.
test-loom:
	$(call say,loom: every interleaving of inbox$(comma) event queues and wake-up)
	cd tests/concurrency && RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$(abspath target)/loom $(CARGO) test --release
	@if $(CARGO) +nightly miri --version > /dev/null 2>&1; then \
		printf '\n== Miri on the same sources\n'; \
		cd tests/concurrency && MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance" \
			CARGO_TARGET_DIR=$(abspath target)/miri $(CARGO) +nightly miri test; \
	else echo "no nightly Miri here: left out"; fi

# The kernels for another processor, emulated, without candle; where the tools for it are missing, it says so.
test-arm:
	$(call say,aarch64: the kernels under qemu-user)
	@CARGO=$(CARGO) CARGO_TARGET_DIR=$(abspath target)/arm tests/arm/test.sh

# The Rust code and its standard library instrumented; on the C side alone it would prove nothing.
tsan:
	RUSTFLAGS="-Zsanitizer=thread" CARGO_TARGET_DIR=$(abspath target)/tsan $(CARGO) +nightly test -Zbuild-std \
		--target $$(rustc -vV | sed -n 's/^host: //p') \
		--test all engine_

$(C)/tests: $(C_TESTS) tests/c/harness.h include/bn_engine.h | lib
	@$(CC) $(C_TEST_FLAGS) $(CFLAGS) $(C_TESTS) -o $@ $(LINK)

test-c: $(C)/tests $(EXAMPLES:%=$(C)/%)
	$(call say,C tests)
	@$(C)/tests
	@for example in hello demo callbacks embed; do $(C)/$$example > $(C)/$$example.out || exit 1; done
	@printf '17+25=\n1+1=\n' | $(C)/event_loop > $(C)/event_loop.out
	@echo "the examples run"
	@$(CC) $(C11) -D_GNU_SOURCE $(CFLAGS) tests/c/unload.c -o $(C)/unload -ldl
	@$(C)/unload $(RUST)/libbn_engine.so

# The same tests with memory errors and leaks looked for: AddressSanitizer where it links and runs.
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
	$(call say,ABI: exported symbols$(comma) the header in C11 and C++17)
	@tests/abi/check_symbols.sh shared $(RUST)/libbn_engine.so $(SYMBOLS)
	@$(CC) $(C11) tests/c/include.c -o $(C)/include-c $(LINK)
	@$(C)/include-c
	@if command -v $(CXX) > /dev/null; then \
		$(CXX) $(CXX17) tests/c/include.cpp -o $(C)/include-cpp $(LINK) && $(C)/include-cpp && \
		echo "the header compiles as C11 and as C++17"; \
	else \
		echo "make test needs a C++ compiler (g++ or clang++), CXX=$(CXX) is none: install one"; exit 1; \
	fi

# What `make install` leaves works from C, C++, CMake and Go, shared and static.
test-install: lib convert
	$(call say,the installed library)
	@rm -rf $(STAGE) $(C)/cmake
	@$(MAKE) --no-print-directory install PREFIX=$(STAGE) LIBDIR=$(STAGE)/lib \
		INCLUDEDIR=$(STAGE)/include BINDIR=$(STAGE)/bin DESTDIR=
	@tests/abi/check_symbols.sh static $(STAGE)/lib/libbn_engine.a $(SYMBOLS)
	@tests/abi/check_install.sh $(STAGE) $(MAJOR) $(VERSION)
	@CC="$(CC)" CXX="$(CXX)" CMAKE="$(CMAKE)" GO="$(GO)" PKG_CONFIG="$(PKG_CONFIG)" \
		tests/abi/use_install.sh $(STAGE) $(C)

# -- install ----------------------------------------------------------------------------------------

# One object whose only global names are the interface's: the Rust runtime inside must not meet another.
$(C)/libbn_engine.a: lib $(SYMBOLS)
	@$(LD) -r --gc-sections --force-group-allocation $(patsubst %,-u %,$(shell cat $(SYMBOLS))) \
		$(RUST)/libbn_engine.a -o $(C)/bn_engine.o
	@$(OBJCOPY) --strip-debug --remove-section=.llvmbc --remove-section=.llvmcmd \
		--keep-global-symbols=$(SYMBOLS) $(C)/bn_engine.o
	@rm -f $@
	@$(AR) rcs $@ $(C)/bn_engine.o

install: $(C)/libbn_engine.a convert
	@install -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(LIBDIR)/cmake/bn_engine $(DESTDIR)$(INCLUDEDIR) \
		$(DESTDIR)$(BINDIR)
	@install -m 644 include/bn_engine.h $(DESTDIR)$(INCLUDEDIR)/
	@$(OBJCOPY) --strip-debug $(RUST)/libbn_engine.so $(C)/libbn_engine.so
	@install -m 755 $(C)/libbn_engine.so $(DESTDIR)$(LIBDIR)/libbn_engine.so.$(VERSION)
	@ln -sf libbn_engine.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libbn_engine.so.$(MAJOR)
	@ln -sf libbn_engine.so.$(MAJOR) $(DESTDIR)$(LIBDIR)/libbn_engine.so
	@install -m 644 $(C)/libbn_engine.a $(DESTDIR)$(LIBDIR)/
	@$(OBJCOPY) --strip-debug $(RUST)/bn-convert $(C)/bn-convert
	@install -m 755 $(C)/bn-convert $(DESTDIR)$(BINDIR)/
	@for file in bn_engine.pc.in cmake/bn_engineConfig.cmake.in cmake/bn_engineConfigVersion.cmake.in; do \
		sed -e 's|@PREFIX@|$(PREFIX)|g' -e 's|@LIBDIR@|$(LIBDIR)|g' -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|g' \
			-e 's|@VERSION@|$(VERSION)|g' -e 's|@MAJOR@|$(MAJOR)|g' \
			-e 's|@STATIC_LIBS@|$(STATIC_LIBS)|g' $$file > $(C)/$$(basename $$file .in) || exit 1; \
	done
	@install -m 644 $(C)/bn_engine.pc $(DESTDIR)$(LIBDIR)/pkgconfig/
	@install -m 644 $(C)/bn_engineConfig.cmake $(C)/bn_engineConfigVersion.cmake \
		$(DESTDIR)$(LIBDIR)/cmake/bn_engine/
	@echo "installed bn_engine $(VERSION) in $(DESTDIR)$(PREFIX)"
