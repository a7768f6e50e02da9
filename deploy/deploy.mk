# Trials of what deploy/ has.
#   make test-monitoring  alerts and dashboard with a Prometheus (needs prometheus and promtool)
#   make test-deploy      manifests against Kubernetes' schemas
#   make test-ray         deploy/ray on a local Ray Serve, with its measurements (minutes; installs Ray from PyPI)

.PHONY: test-monitoring test-deploy test-ray

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

# Not in CI: Ray is large. RAY_PARTS=kill for one part.
RAY_PARTS ?=

target/ray/ready: deploy/ray/requirements.txt
	@$(PYTHON) -m venv --clear target/ray && target/ray/bin/pip install --quiet -r $< && touch $@

test-ray: wheel target/ray/ready
	$(call say,Ray Serve)
	@target/ray/bin/pip install --quiet --force-reinstall --no-deps target/wheels/*.whl
	@target/ray/bin/python deploy/ray/try.py $(RAY_PARTS)
