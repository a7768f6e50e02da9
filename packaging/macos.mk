# macOS from another system: the static library by cargo, the dynamic one linked by Rust's LLD against the list of
# system functions that zig has (docs/packaging.md). Never run.
#   make check-targets  the library passes the compiler for iOS and Android
#   make macos    ZIG='python3 -m ziglang' (PyPI: ziglang); LLVM's nm and objdump (Debian: llvm)

ZIG ?= $(or $(shell command -v zig),$(PYTHON) -m ziglang)
MACOS_TARGETS := aarch64-apple-darwin x86_64-apple-darwin
MACOS_VERSION := 11.0
DYLIB := libbn_engine.$(ABI).dylib
RUST_HOST = $(shell $(or $(RUSTC),rustc) -vV | sed -n 's/^host: //p')
RUST_LLD = $(shell $(or $(RUSTC),rustc) --print sysroot)/lib/rustlib/$(RUST_HOST)/bin/rust-lld
# rustc's linker. Some dependencies make dylibs, which nothing uses.
MACOS_CC = $(abspath $(C)/zig-cc)
# TARGET,FILE: makes FILE a C compiler for zig's TARGET.
zig_cc = printf '\#!/bin/sh\nexec %s %s "$$@"\n' $(abspath packaging/dist/zig.sh) $(1) > $(2) && chmod +x $(2)

.PHONY: macos macos-rust macos-built macos-hosts

macos:
	@for target in $(MACOS_TARGETS); do \
		$(MAKE) --no-print-directory TARGET=$$target macos-built || exit 1; \
	done

# Builds the programs, and the static library that the dylib is linked from.
macos-rust:
	@mkdir -p $(LIB)
	@$(call zig_cc,$(firstword $(subst -, ,$(TARGET)))-macos.$(MACOS_VERSION),$(MACOS_CC))
	@ZIG="$(ZIG)" CARGO_TARGET_$(shell echo $(TARGET) | tr a-z- A-Z_)_LINKER=$(MACOS_CC) \
		$(CARGO) build --locked --profile $(PROFILE) --target $(TARGET) --lib --bin bn-convert

# Linked from the static library, so that it exports only the interface.
macos-built: macos-rust
	@$(READ_HEADER) -f tools/header/symbols.awk $(HEADER) | LC_ALL=C sort > $(SYMBOLS)
	@sed 's/^/_/' $(SYMBOLS) > $(C)/exported.txt
	@system="$$($(ZIG) env | sed -n 's/.*"lib_dir": "\(.*\)".*/\1/p')/libc/darwin/libSystem.tbd"; \
	$(RUST_LLD) -flavor darwin -arch $(if $(findstring aarch64,$(TARGET)),arm64,x86_64) \
		-platform_version macos $(MACOS_VERSION) $(MACOS_VERSION) \
		-dylib -install_name @rpath/$(DYLIB) -compatibility_version $(ABI) -current_version $(VERSION) -dead_strip \
		-exported_symbols_list $(C)/exported.txt -o $(LIB)/$(DYLIB) $(RUST)/libbn_engine.a "$$system"
	@ln -sf $(DYLIB) $(LIB)/libbn_engine.dylib
	@tests/abi/check_symbols.sh dylib $(LIB)/$(DYLIB) $(SYMBOLS)
	@ZIG="$(ZIG)" $(MACOS_CC) $(C11) examples-c/hello.c -o $(C)/hello $(LIB)/$(DYLIB) \
		-Wl,-rpath,@executable_path/$(notdir $(LIB))
	@echo "$(LIB)/$(DYLIB) and $(C)/hello: built, never run"

# bn-chat and bn-server in $(C)/package, for a bin folder beside lib.
MACOS_SDK = $(abspath $(C)/sdk)
macos-hosts: HOSTS_ENV = ZIG="$(ZIG)" CC=$(MACOS_CC) SDKROOT=$(MACOS_SDK) \
	CARGO_TARGET_$(shell echo $(TARGET) | tr a-z- A-Z_)_LINKER=$(MACOS_CC) \
	RUSTFLAGS="$$RUSTFLAGS -C link-arg=-F$(MACOS_SDK)/System/Library/Frameworks -C link-arg=-L$(MACOS_SDK)/usr/lib"
macos-hosts: macos-built
	@packaging/dist/macos_sdk.sh $(MACOS_SDK)
	$(call cargo_hosts,@executable_path/../lib)
	@mkdir -p $(C)/package && install -m 755 $(HOSTS_OUT)/bn-chat $(HOSTS_OUT)/bn-server $(C)/package/

# Targets that the library must compile for; checked, not built.
CHECKED_TARGETS := aarch64-apple-ios aarch64-linux-android

.PHONY: check-targets

check-targets:
	@for target in $(CHECKED_TARGETS); do \
		echo "$$target" && $(CARGO) check --quiet --locked --lib --target $$target || exit 1; \
	done
