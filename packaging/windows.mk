# Windows x86-64 by MinGW-w64, and its tests under Wine (docs/packaging.md).
#   make windows, make test-windows    PROFILE=dev for a build without optimization

MINGW ?= x86_64-w64-mingw32-
WINE ?= $(firstword $(wildcard /usr/lib/wine/wine64) wine)
WINDOWS := TARGET=x86_64-pc-windows-gnu CROSS=$(MINGW)

.PHONY: windows test-windows test-windows-c test-windows-rust test-windows-ci windows-built windows-tested windows-symbols
.PHONY: windows-c windows-rust windows-hosts test-windows-hosts windows-hosts-tested

windows:
	@$(MAKE) --no-print-directory $(WINDOWS) windows-built

test-windows:
	@$(MAKE) --no-print-directory $(WINDOWS) windows-tested

test-windows-c:
	@$(MAKE) --no-print-directory $(WINDOWS) windows-symbols windows-c

test-windows-hosts:
	@$(MAKE) --no-print-directory $(WINDOWS) windows-hosts-tested

test-windows-rust:
	@$(MAKE) --no-print-directory $(WINDOWS) windows-rust

# Build everything together first, so that the compiler has work for all cores.
test-windows-ci:
	@$(MAKE) --no-print-directory $(WINDOWS) WINDOWS_RUST="$(WINDOWS_RUST_CI)" windows-rust
	@$(MAKE) --no-print-directory $(WINDOWS) windows-symbols windows-c windows-hosts-tested

DLL := bn_engine-$(ABI).dll
IMPORT := $(LIB)/libbn_engine.dll.a
# System libraries of the Rust code.
WINDOWS_LIBS := -lntdll -luserenv -lws2_32 -ldbghelp
# The header's 64-bit numbers need the printf of C99.
WINDOWS_C := $(C11) -D_GNU_SOURCE -D__USE_MINGW_ANSI_STDIO=1
WINDOWS_LINK := $(IMPORT) -lpsapi -static -lpthread

$(C)/bn_engine.def: $(SYMBOLS)
	@(echo "LIBRARY $(DLL)"; echo EXPORTS; sed 's/^/    /' $<) > $@

# Linked from the static library, as on Linux: rustc would also export the C interface of a dependency.
$(LIB)/$(DLL): $(RUST)/libbn_engine.a src/ffi/unload_windows.c $(C)/bn_engine.def
	@$(CC) $(C11) $(CFLAGS) -shared -static-libgcc -o $(LIB)/$(DLL) $(C)/bn_engine.def src/ffi/unload_windows.c \
		-Wl,--wrap=TlsAlloc,--wrap=TlsFree $(RUST)/libbn_engine.a $(LDFLAGS) \
		-Wl,--out-implib,$(IMPORT) -Wl,--gc-sections -Wl,--no-insert-timestamp \
		$(if $(filter release,$(PROFILE)),-Wl$(comma)--strip-debug) $(WINDOWS_LIBS)

$(IMPORT): $(LIB)/$(DLL) ;

# Examples that use no terminal, epoll or getrusage.
WINDOWS_EXAMPLES := hello callbacks constrained embed event_loop_windows
WINDOWS_TESTS := $(filter-out tests/c/test_fork.c,$(wildcard tests/c/test_*.c)) tests/c/harness.c \
	tests/c/system_windows.c tests/c/process_windows.c
WINDOWS_PROGRAMS := cycles soak destroy

$(C)/%.exe: examples-c/%.c $(HEADER) $(IMPORT)
	@$(CC) $(WINDOWS_C) $(CFLAGS) $< -o $@ $(WINDOWS_LINK)

$(C)/loadgen.exe: $(wildcard examples-c/load*.c) examples-c/loadgen.h $(HEADER) $(IMPORT)
	@$(CC) $(WINDOWS_C) $(CFLAGS) $(filter %.c,$^) -o $@ $(WINDOWS_LINK)

$(WINDOWS_PROGRAMS:%=$(C)/%.exe): $(C)/%.exe: tests/c/%.c tests/c/process_windows.c tests/c/program.h tests/c/process.h \
		$(IMPORT)
	@$(CC) $(WINDOWS_C) $(CFLAGS) $(filter %.c,$^) -o $@ $(WINDOWS_LINK)

# Use relative paths, as the programs may run on another system.
$(C)/tests.exe: $(WINDOWS_TESTS) tests/c/harness.h tests/c/system.h tests/c/process.h tests/c/xxh64.h $(IMPORT)
	@$(CC) $(WINDOWS_C) -DBN_DEMO_MODEL='"models/bn-demo.gguf"' -DBN_DEMO_PROMPTS='"tests/golden/demo_prompts.json"' \
		-DBN_GOLDEN_MODELS='"tests/golden/models"' $(CFLAGS) $(filter %.c,$^) -o $@ $(WINDOWS_LINK)

# bn-chat and bn-server find the DLL beside themselves, or where the system looks.
windows-hosts: $(IMPORT)
	$(call cargo_hosts)
	@install -m 755 $(HOSTS_OUT)/bn-chat.exe $(HOSTS_OUT)/bn-server.exe $(C)/

$(C)/unload.exe: tests/c/unload_windows.c tests/c/process_windows.c tests/c/process.h tests/c/unload.h $(HEADER)
	@$(CC) $(WINDOWS_C) $(CFLAGS) $(filter %.c,$^) -o $@ -lpsapi -static

# Wine before version 9 lacks this system library.
$(C)/wine/bcryptprimitives.dll: tests/c/wine_bcryptprimitives.c
	@mkdir -p $(@D) && $(CC) $(C11) -shared -O2 -o $@ $< -ladvapi32

WINDOWS_EXES := $(patsubst %,$(C)/%.exe,tests $(WINDOWS_EXAMPLES) loadgen unload $(WINDOWS_PROGRAMS))

windows-built: $(LIB)/$(DLL) $(WINDOWS_EXES) windows-hosts windows-symbols
	@$(CARGO) build --locked --profile $(PROFILE) --target $(TARGET) --bin bn-convert
	@echo "$(LIB): $(DLL), libbn_engine.dll.a; $(C): bn_engine.def and programs; $(RUST)/bn-convert.exe"

windows-symbols: $(LIB)/$(DLL)
	@tests/abi/check_symbols.sh dll $(LIB)/$(DLL) $(SYMBOLS)

windows-tested: windows-symbols windows-c windows-hosts-tested windows-rust

UNDER_WINE = WINE=$(WINE) WINEPREFIX=$(abspath $(C))/wine/prefix WINEDEBUG=-all WINEPATH='Z:$(abspath $(C))/wine;Z:$(abspath $(LIB))'

windows-c: $(WINDOWS_EXES) $(C)/wine/bcryptprimitives.dll
	$(call say,Windows: C tests under Wine)
	@$(UNDER_WINE) tests/c/wine.sh $(C)/tests.exe
	@for example in $(WINDOWS_EXAMPLES); do $(UNDER_WINE) tests/c/wine.sh $(C)/$$example.exe > $(C)/$$example.out || exit 1; done
	@$(UNDER_WINE) tests/c/wine.sh $(C)/loadgen.exe --seconds 0.5 --max-batch 8 --levels 50,150 --json $(C)/load.json \
		builtin:echo > $(C)/loadgen.out
	@$(UNDER_WINE) tests/c/wine.sh $(C)/event_loop_windows.exe 17+25= | grep -q '^\[1\] -- stop'
	@echo "the examples run"
	@$(UNDER_WINE) tests/c/wine.sh $(C)/cycles.exe
	@$(UNDER_WINE) tests/c/wine.sh $(C)/soak.exe 3
	@$(UNDER_WINE) tests/c/wine.sh $(C)/destroy.exe 2
	@$(UNDER_WINE) tests/c/wine.sh $(C)/unload.exe $(LIB)/$(DLL)

windows-hosts-tested: windows-hosts $(C)/wine/bcryptprimitives.dll
	$(call say,Windows: bn-chat and bn-server under Wine)
	@$(UNDER_WINE) hosts/chat/test_windows.sh $(C)/bn-chat.exe
	@$(UNDER_WINE) hosts/server/tests/windows.sh $(C)/bn-server.exe

# Rust tests that do not need Unix. A killed run leaves its files, and later runs reuse their names.
WINDOWS_RUST ?= --lib --test all --test fuzz --test grammar_memory --test model_memory --test text_chat_memory
# CI skips three integration tests that write thousands of files: they are slow under Wine.
WINDOWS_RUST_CI := --test all -- --skip folders_with_one_change --skip folders_of_mutated

windows-rust: $(C)/wine/bcryptprimitives.dll
	$(call say,Windows: Rust tests under Wine)
	@rm -rf $(C)/wine/prefix/drive_c/users/*/Temp/bn-*
	@$(UNDER_WINE) CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER=$(abspath tests/c/wine.sh) \
		$(CARGO) test --locked --profile $(PROFILE) --target $(TARGET) $(WINDOWS_RUST)
