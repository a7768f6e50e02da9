# Packages for other languages, against an installation of their own.
#   make test-go, test-rust-binding, test-cpp, test-python, test-swift
#   make wheel       target/wheels: the package for Python
#   make test-readme  the programs of README.md

.PHONY: staged test-go test-rust-binding test-cpp test-swift wheel test-python check-python test-readme

# An installation for the bindings, which is kept.
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

# Not in `make test-hosts`: without a Swift compiler, it makes a Debian of 2.5 GB that has one (as root).
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
