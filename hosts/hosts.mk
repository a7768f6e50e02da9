# bn-server and bn-chat, and their tests.
#   make hosts       builds them; make test-hosts, soak-hosts, bench-hosts
#   make trials      bn-server with clients and agents from PyPI and npm; writes docs/clients.md, docs/agents.md (tools/clients)
#   make test-browser  the page of bn-server in Chromium

.PHONY: hosts clients trials test-hosts test-hosts-rust test-chat test-browser soak-hosts bench-hosts

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

# The programs as they are installed. They are linked each time, for other folders; without cargo (sudo make install),
# existing files are used.
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

# The shell completions of bn-server, written if it runs on this machine.
COMPLETIONS := $(C)/package/completions

.PHONY: package-hosts package-hosts-built

$(C)/server-load: hosts/server/tests/load.c
	@mkdir -p $(C) && $(CC) $(C11) -D_GNU_SOURCE $(CFLAGS) $< -o $@

# The engine's own cost per token, and with HTTP, JSON and a client beside it.
bench-hosts: $(C)/bn-server $(C)/server-load $(C)/bench
	@BN_MODEL=builtin:echo BN_MAX_BATCH=256 BN_PORT=18099 BN_THREADS=1 $(C)/bn-server 2> /dev/null & server=$$!; sleep 1; \
		for run in 1 2 3; do $(C)/bench --echo; $(C)/server-load 18099 256 1000; done; kill $$server

# Clients from PyPI, in a virtual environment. If they cannot be installed, their tests are skipped; in CI that is an
# error.
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

# In the profile of the programs, so that dependencies are built once.
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

# Clients and agents from PyPI and npm: docs/clients.md, docs/agents.md (tools/clients/README.md). Not in CI.
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

# Runs random clients for SECONDS.
soak-hosts: $(C)/bn-server
	@$(PYTHON) hosts/server/tests/soak.py $(SECONDS)
