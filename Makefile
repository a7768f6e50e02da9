# Needs cargo, a C compiler and make.
#   make demo      several prompts stream at once from the embedded model
#   make hosts     target/c/bn-server, a model over HTTP, and target/c/bn-chat, a chat in the terminal
#   make install   PREFIX=/usr/local DESTDIR=, and make uninstall
#   make test      all tests (needs a C++ compiler too, and ASan or valgrind)
#   make bench     what this machine can do, and how near to it the library comes
#   make help-all  every other target

CARGO ?= cargo
CXX ?= c++
GO ?= go
PYTHON ?= python3
CMAKE ?= cmake
PKG_CONFIG ?= pkg-config
VALGRIND ?= valgrind
CONAN ?= conan
OBJCOPY ?= objcopy
# For cross builds: cargo's name of the target, and the prefix of its compiler and binutils.
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
# Notices and SBOM of the programs of hosts/
HOSTS_DOCDIR ?= $(DOCDIR)/programs
# The folder for bn-server's unit: $(PREFIX)/lib/systemd/system. Empty: it is not installed.
SYSTEMDDIR ?=
# Installed programs find the library by its path relative to themselves. Empty: only where the system looks.
RUNPATH ?= $$ORIGIN/$(call relative,$(BINDIR),$(LIBDIR))
# release or dev
PROFILE ?= release

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
# musl-gcc brings a GCC unwinder built for glibc, which does not link with musl. Link Rust's instead.
UNWINDER := $(if $(findstring -musl,$(TARGET)),$(shell $(or $(RUSTC),rustc) --print target-libdir \
	--target $(TARGET))/self-contained/libunwind.a)

UNLOAD_CALLS := pthread_key_create pthread_key_delete pthread_atfork

EXAMPLES := hello demo callbacks event_loop embed constrained picture bench loadgen
SYMBOLS := $(C)/symbols.txt
READ_HEADER := awk -f tools/header/parse.awk

comma := ,
say = @printf '\n== %s\n' "$(1)"

.PHONY: all help help-all rust lib convert examples demo header parity docs notices lint header-lint clean

all: lib convert examples

help:
	@sed -n '/^$$/q; s/^# \{0,3\}//p' $(firstword $(MAKEFILE_LIST))

# Prints the rest of this file's help, and the first comment of the other makefiles.
help-all: help
	@sed -n '1,/^$$/d; s/^#   make/make/p' $(firstword $(MAKEFILE_LIST))
	@for file in $(filter %.mk,$(MAKEFILE_LIST)); do printf '\n%s: ' $$file; sed -n '/^$$/q; s/^# \{0,3\}//p' $$file; done

# Builds a file. Without cargo (sudo make install), an existing file is used, unless a source is newer.
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

# Linked from the static library: rustc passes its own version script for a cdylib, and linkers accept only one. Calls
# that src/ffi/unload.c intercepts are renamed, since not every linker has --wrap.
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

#   make header    generate include/bn_engine.h from src/ffi, and what the bindings take from it
header:
	$(CARGO) check --quiet --lib
	@cp "$$(ls -t $(CARGO_DIR)/debug/build/bn-engine-*/out/bn_engine.h | head -n 1)" include/bn_engine.h
	@awk -f tools/header/parse.awk -f tools/header/swift.awk $(HEADER) > bindings/swift/Sources/BnEngine/Configuration.swift
	@for part in stats_fields options_fields; do \
		awk -v part=$$part -f tools/header/parse.awk -f tools/header/go.awk $(HEADER) > bindings/go/$$part.go; done
	@for part in header calls_cgo calls_purego; do \
		awk -v part=$$part -f tools/header/parse.awk -f tools/header/go_c.awk $(HEADER) > bindings/go/$$part.go; done
	@for file in src/sys src/stats src/settings tests/all/layout; do awk -v part=$$(basename $$file) \
		-f tools/header/parse.awk -f tools/header/rust.awk $(HEADER) > bindings/rust/$$file.rs; done

#   make parity    write docs/parity.md: results compared with the references
parity:
	$(CARGO) test --quiet --test all model_parity:: -- --ignored document
	@echo "docs/parity.md is written"

# Line length, and that it compiles as two C standards and as C++; no struct has unnamed padding; packages have its fields.
header-lint:
	@tools/header/lint.sh $(HEADER)
	@tools/header/wrappers.sh $(HEADER) bindings

#   make lint      formats, clippy, features, the header; make clean
lint: header-lint
	$(CARGO) fmt --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy --lib -- -D warnings -D unreachable_pub
	@CARGO=$(CARGO) tests/features.sh

clean:
	$(CARGO) clean

#   make docs      the header as HTML in target/docs (needs doxygen)
docs:
	@mkdir -p target/docs
	@(cat tools/header/Doxyfile; echo "PROJECT_NUMBER = $(VERSION)") | doxygen -
	@echo "target/docs/html/index.html is written"

#   make notices   write THIRD-PARTY, the licenses of what the library and the programs are built from
notices: | rust
	@$(CARGO) dev notices > $(C)/THIRD-PARTY && mv $(C)/THIRD-PARTY packaging/
	@$(CARGO) dev notices -- hosts > $(C)/THIRD-PARTY && mv $(C)/THIRD-PARTY hosts/

include tests/tests.mk
include hosts/hosts.mk
include bindings/bindings.mk
include deploy/deploy.mk
include packaging/install.mk
include packaging/packages.mk
include packaging/windows.mk
include packaging/macos.mk
include packaging/dist.mk
