# make install, make uninstall
#   PREFIX=/usr/local DESTDIR=   (TARGET=aarch64-unknown-linux-gnu CROSS=aarch64-linux-gnu-: for another machine)
#   without cargo (sudo make install), what was built before is installed

.PHONY: install uninstall package

$(C)/man/bn_engine.3: $(HEADER) $(wildcard tools/header/*.awk) | rust
	@rm -rf $(C)/man && mkdir -p $(C)/man
	@$(READ_HEADER) -v out=$(C)/man -v version=$(VERSION) -f tools/header/man.awk $(HEADER)

# Paths relative to the file itself, so that the installation may be moved.
relative = $(shell realpath -m --relative-to=$(1) $(2))

package:
	@mkdir -p $(C)/package
	@for file in $(wildcard packaging/pkg-config/*.in packaging/cmake/*.in); do \
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
packaging/THIRD-PARTY 644 $(DOCDIR)
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

# Installed only if they were built before (make hosts).
BUILT_HOSTS := $(wildcard $(C)/bn-server)
define HOSTS
$(C)/package/bn-chat 755 $(BINDIR)
$(C)/package/bn-server 755 $(BINDIR)
hosts/chat/bn-chat.1 644 $(MANDIR)/man1
hosts/server/bn-server.1 644 $(MANDIR)/man1
hosts/THIRD-PARTY 644 $(HOSTS_DOCDIR)
endef
export HOSTS
# Installed only if they exist.
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

# Installed only if it was written before.
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

# Pass the same variables as to `make install`.
uninstall: $(C)/man/bn_engine.3
	@rm -f $(DESTDIR)$(LIBDIR)/libbn_engine.so $(DESTDIR)$(LIBDIR)/$(SONAME)
	@$(installed) | while read -r file mode folder; do rm -f "$(DESTDIR)$$folder/$$(basename "$$file")"; done
	@rmdir $(DESTDIR)$(LIBDIR)/cmake/bn_engine $(DESTDIR)$(HOSTS_DOCDIR) $(DESTDIR)$(DOCDIR) 2> /dev/null || true

# Set all variables, so that none is inherited from the caller.
STAGED := PREFIX=$(STAGE) LIBDIR=$(STAGE)/lib INCLUDEDIR=$(STAGE)/include BINDIR=$(STAGE)/bin \
	MANDIR=$(STAGE)/share/man DOCDIR=$(STAGE)/share/doc/bn_engine HOSTS_DOCDIR=$(STAGE)/share/doc/bn_engine/programs \
	SYSTEMDDIR=$(STAGE)/lib/systemd/system RUNPATH='$$$$ORIGIN/../lib' DESTDIR=
