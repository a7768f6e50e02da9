# Packages of the library and their tests (docs/packaging.md).
#   make deb, make sbom    Debian packages, the list of what is inside
#   make test-packages     tests that need programs that few machines have: Debian packages, Conan, SBOM, musl, aarch64, Swift,
#                          Prometheus, Ray, Kubernetes' schemas, Chromium

.PHONY: deb sbom test-packages test-sbom test-deb test-conan test-musl test-aarch64

# Lists of what the library and the programs contain, in CycloneDX.
sbom:
	@mkdir -p $(dir $(SBOM)) && CARGO=$(CARGO) $(PYTHON) packaging/sbom.py $(SBOM)
	@CARGO=$(CARGO) $(PYTHON) packaging/sbom.py $(HOSTS_SBOM) hosts
	@echo "$(SBOM) and $(HOSTS_SBOM) are written"

# target/deb/*.deb. Needs Debian's debhelper; cargo may be rustup's, so dependencies of the build are not asked for.
deb:
	@head -n 1 packaging/debian/changelog | grep -q '($(VERSION)-' || { echo "packaging/debian/changelog is not of $(VERSION)"; exit 1; }
	@rm -rf target/deb && mkdir -p target/deb/bn-engine && cp -r packaging/debian target/deb/bn-engine
	@cd target/deb/bn-engine && SOURCE=$(CURDIR) dpkg-buildpackage -us -uc -b -d > ../build.log 2>&1 || { tail -n 40 ../build.log; exit 1; }
	@ls target/deb/*.deb

# Needs uncommon programs, so it is run by hand. Most parts report what they skip where a tool is missing.
test-packages: test-sbom test-deb test-conan test-musl test-aarch64 \
		test-go test-cpp test-swift test-monitoring test-deploy test-ray test-browser
	$(call say,the packages passed)

test-sbom: sbom
	$(call say,SBOM)
	@$(PYTHON) packaging/tests/sbom.py $(SBOM) packaging/THIRD-PARTY
	@$(PYTHON) packaging/tests/sbom.py $(HOSTS_SBOM) hosts/THIRD-PARTY

test-deb: | test-sbom
	$(call say,Debian packages)
	@MAKE="$(MAKE)" packaging/tests/deb.sh

test-conan:
	$(call say,Conan)
	@CONAN="$(CONAN)" CARGO_TARGET_DIR=$(CARGO_DIR) packaging/tests/conan.sh

test-musl test-aarch64: test-%:
	$(call say,$*)
	@MAKE="$(MAKE)" PKG_CONFIG="$(PKG_CONFIG)" packaging/tests/cross.sh $*
