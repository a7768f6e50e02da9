# Archives and wheels to download, built on Linux x86-64 (docs/packaging.md).
#   make dist        target/dist/out; DIST_NAMES='linux-x86_64 ...' for some of them
#   make test-dist   unpacks and uses what is there: packaging/tests/dist.sh
# Needs zig (PyPI: ziglang), binutils for aarch64, MinGW-w64, LLVM (Debian: llvm).

# NAME: rustc's target, zig's with the oldest libc or system, the wheel's platform
DIST_linux-x86_64 := x86_64-unknown-linux-gnu x86_64-linux-gnu.2.17 manylinux2014_x86_64
DIST_linux-aarch64 := aarch64-unknown-linux-gnu aarch64-linux-gnu.2.17 manylinux2014_aarch64
DIST_linux-musl-x86_64 := x86_64-unknown-linux-musl x86_64-linux-musl musllinux_1_2_x86_64
DIST_windows-x86_64 := x86_64-pc-windows-gnu x86_64-windows-gnu win_amd64
DIST_macos-aarch64 := aarch64-apple-darwin aarch64-macos.$(MACOS_VERSION) macosx_11_0_arm64
DIST_macos-x86_64 := x86_64-apple-darwin x86_64-macos.$(MACOS_VERSION) macosx_11_0_x86_64
DIST_NAMES ?= linux-x86_64 linux-aarch64 linux-musl-x86_64 windows-x86_64 macos-aarch64 macos-x86_64

LIPO ?= $(or $(shell command -v llvm-lipo),$(lastword $(sort $(wildcard /usr/bin/llvm-lipo-*))))
DIST := target/dist
DIST_OUT := $(DIST)/out
# The timestamp of every file in an archive
ifneq ($(filter dist% xcframework,$(MAKECMDGOALS)),)
export SOURCE_DATE_EPOCH ?= $(or $(shell git log -1 --format=%ct 2> /dev/null),$(shell stat -c %Y CHANGELOG.md))
endif

.PHONY: dist dist-archive dist-linux dist-windows dist-macos xcframework test-dist

dist: sbom $(PY)/venv/ready
	@rm -rf $(DIST_OUT) $(DIST)/completions && mkdir -p $(DIST_OUT)
	@for name in $(DIST_NAMES); do $(MAKE) --no-print-directory DIST_NAME=$$name dist-archive || exit 1; done
	@[ "$(words $(filter macos%,$(DIST_NAMES)))" != 2 ] || $(MAKE) --no-print-directory xcframework
	@cd $(DIST_OUT) && LC_ALL=C sha256sum * > SHA256SUMS && cat SHA256SUMS

# -- one archive ------------------------------------------------------------------------------------

DIST_NAME :=
DIST_ROW := $(DIST_$(DIST_NAME))
DIST_SYSTEM := $(firstword $(subst -, ,$(DIST_NAME)))
DIST_FOLDER := bn_engine-$(VERSION)-$(DIST_NAME)
DIST_WORK := $(DIST)/$(DIST_NAME)
DIST_CC := $(abspath $(DIST_WORK)/cc)

# Keep this machine's paths out of the binaries.
DIST_CARGO := $(or $(CARGO_HOME),$(HOME)/.cargo)
REMAP = $(foreach pair,$(CURDIR)=/bn_engine $(DIST_CARGO)=/cargo \
	$(shell $(or $(RUSTC),rustc) --print sysroot)=/rust,--remap-path-prefix=$(pair))
DIST_ENV = RUSTFLAGS="$(REMAP)" CARGO_TARGET_DIR="$(or $(CARGO_TARGET_DIR),$(abspath $(DIST)/cargo))" ZIG="$(ZIG)" \
	$(DIST_ENV_$(DIST_SYSTEM))
# rustc's linker; windows.mk and macos.mk name their own. For musl, Rust brings all that bn-convert needs.
DIST_ENV_linux = CARGO_TARGET_$(shell echo $(firstword $(DIST_ROW)) | tr a-z- A-Z_)_LINKER="$(if \
	$(findstring musl,$(DIST_NAME)),$(RUST_LLD),$(DIST_CC))"

# Set all variables of an installation, so that none is inherited from the caller.
DIST_VARS = DIST_NAME=$(DIST_NAME) TARGET=$(firstword $(DIST_ROW)) C=$(DIST_WORK)/c \
	CFLAGS="-O2 -ffile-prefix-map=$(CURDIR)=. -ffile-prefix-map=$(DIST_CARGO)=/cargo" COMPLETIONS=$(DIST)/completions \
	PREFIX=/$(DIST_FOLDER) LIBDIR=/$(DIST_FOLDER)/lib INCLUDEDIR=/$(DIST_FOLDER)/include BINDIR=/$(DIST_FOLDER)/bin \
	MANDIR=/$(DIST_FOLDER)/share/man DOCDIR=/$(DIST_FOLDER)/share/doc/bn_engine \
	HOSTS_DOCDIR=/$(DIST_FOLDER)/share/doc/bn_engine/programs SYSTEMDDIR= RUNPATH='$$$$ORIGIN/../lib' \
	DESTDIR=$(DIST_WORK)/stage $(DIST_VARS_$(DIST_SYSTEM))
DIST_BINUTILS := $(if $(filter linux-aarch64,$(DIST_NAME)),aarch64-linux-gnu-)
# Binaries that need an unwinder link zig's.
DIST_VARS_linux = CC=$(DIST_CC) LD=$(DIST_BINUTILS)ld AR=$(DIST_BINUTILS)ar OBJCOPY=$(DIST_BINUTILS)objcopy \
	$(if $(findstring musl,$(DIST_NAME)),,LDFLAGS=-lunwind) BUILT_HOSTS=yes
DIST_VARS_windows = CROSS=$(MINGW) SHARED=../bin/$(DLL) SONAME=$(DLL) STATIC_LIBS=
DIST_VARS_macos = CC=$(DIST_CC) MACOS_CC=$(DIST_CC) SHARED=$(DYLIB) SONAME=@rpath/$(DYLIB) STATIC_LIBS=

dist-archive:
	$(call say,$(DIST_FOLDER))
	@[ -n "$(DIST_ROW)" ] || { echo "no archive is called '$(DIST_NAME)': one of $(DIST_NAMES)"; exit 1; }
	@rm -rf $(DIST_WORK)/stage && mkdir -p $(DIST_WORK)/stage
	@$(call zig_cc,$(word 2,$(DIST_ROW)),$(DIST_CC))
	@$(DIST_ENV) $(MAKE) --no-print-directory $(DIST_VARS) dist-$(DIST_SYSTEM)
	@$(PYTHON) packaging/dist/archive.py $(DIST_WORK)/stage/$(DIST_FOLDER) \
		$(DIST_OUT)/$(DIST_FOLDER).$(if $(filter windows,$(DIST_SYSTEM)),zip,tar.gz)
	@rm -rf $(DIST_WORK)/wheel && cd bindings/python && \
		BN_WHEEL_LIBRARY=$(DIST_WORK)/stage/$(DIST_FOLDER)/$(DIST_LIBRARY_$(DIST_SYSTEM)) \
		BN_WHEEL_PLATFORM=$(word 3,$(DIST_ROW)) \
		$(PY_RUN) python -m hatchling build -t wheel -d $(abspath $(DIST_WORK))/wheel > /dev/null
	@mv $(DIST_WORK)/wheel/*.whl $(DIST_OUT)/

# The libraries of the wheel.
DIST_LIBRARY_linux := lib/$(SHARED)
DIST_LIBRARY_windows := bin/$(DLL)
DIST_LIBRARY_macos := lib/$(DYLIB)

# For the Swift package: the libraries of both processors, as in the archives.
FRAMEWORK := bn_engine.xcframework

xcframework:
	@LIPO="$(LIPO)" $(PYTHON) packaging/dist/xcframework.py $(HEADER) $(DIST)/$(FRAMEWORK) \
		$(foreach name,macos-aarch64 macos-x86_64,$(DIST)/$(name)/stage/bn_engine-$(VERSION)-$(name)/lib/$(DYLIB))
	@$(PYTHON) packaging/dist/archive.py $(DIST)/$(FRAMEWORK) $(DIST_OUT)/$(FRAMEWORK).zip

dist-linux: install
	@tests/abi/check_symbols.sh shared $(LIB)/$(SHARED) $(SYMBOLS) @@BN_$(ABI)
	@tests/abi/check_symbols.sh static $(LIB)/libbn_engine.a $(SYMBOLS)
	@packaging/dist/glibc.sh "$(word 2,$(subst gnu.,gnu ,$(word 2,$(DIST_ROW))))" \
		$(DESTDIR)$(LIBDIR)/$(SHARED) $(DESTDIR)$(BINDIR)/*

# Only the Linux archives have a static library.
define WINDOWS_INSTALLED
$(LIB)/$(DLL) 755 $(BINDIR)
$(C)/bn-convert.exe 755 $(BINDIR)
$(C)/bn-chat.exe 755 $(BINDIR)
$(C)/bn-server.exe 755 $(BINDIR)
hosts/THIRD-PARTY 644 $(HOSTS_DOCDIR)
$(HOSTS_SBOM) 644 $(HOSTS_DOCDIR)
$(IMPORT) 644 $(LIBDIR)
$(C)/bn_engine.def 644 $(LIBDIR)
endef
export WINDOWS_INSTALLED

dist-windows: windows-built package
	@$(MINGW)objcopy --strip-debug $(RUST)/bn-convert.exe $(C)/bn-convert.exe
	@(printf '%s\n' "$$INTERFACE_INSTALLED" "$$WINDOWS_INSTALLED" $(SBOM_INSTALLED)) | $(put)

define MACOS_INSTALLED
$(LIB)/$(DYLIB) 755 $(LIBDIR)
$(RUST)/bn-convert 755 $(BINDIR)
src/bin/bn-convert.1 644 $(MANDIR)/man1
$(HOSTS)
endef
export MACOS_INSTALLED

dist-macos: macos-built macos-hosts package
	@(printf '%s\n' "$$INTERFACE_INSTALLED" "$$MACOS_INSTALLED" $(SBOM_INSTALLED); $(extras)) | $(put)
	@ln -sf $(DYLIB) $(DESTDIR)$(LIBDIR)/libbn_engine.dylib

test-dist:
	$(call say,archives to download)
	@PYTHON="$(PYTHON)" MINGW="$(MINGW)" WINE="$(WINE)" ZIG="$(ZIG)" packaging/tests/dist.sh $(DIST_OUT)
