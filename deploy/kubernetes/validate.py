#!/usr/bin/env python3
"""Checks the manifests offline: built by kustomize, each object against the schema of its kind.

    python3 -m venv VENV && VENV/bin/pip install kubernetes-validate jsonschema
    VENV/bin/python validate.py

Kubernetes' schemas come with kubernetes-validate, InferencePool's with its Go module. Needs go (kustomize is a Go
program). Checked beyond schemas: names that objects refer to, and that bn-server has the metrics that they name.
"""

import json
import pathlib
import re
import subprocess
import sys

import jsonschema
import kubernetes_validate
import yaml

HERE = pathlib.Path(__file__).resolve().parent
KUSTOMIZE = "sigs.k8s.io/kustomize/kustomize/v5@v5.7.1"
POOL = "sigs.k8s.io/gateway-api-inference-extension@v1.0.0"
KUBERNETES = "1.34"


def built(folder):
    text = subprocess.run(["go", "run", KUSTOMIZE, "build", HERE / folder], check=True, stdout=subprocess.PIPE).stdout
    return [o for o in yaml.safe_load_all(text) if o]


def pool_schema():
    told = subprocess.run(["go", "mod", "download", "-json", POOL], check=True, stdout=subprocess.PIPE).stdout
    crd = pathlib.Path(json.loads(told)["Dir"]) / "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml"
    versions = yaml.safe_load(crd.read_text())["spec"]["versions"]
    return next(v["schema"]["openAPIV3Schema"] for v in versions if v["name"] == "v1")


def closed(schema):
    """Forbids fields that the schema does not name."""
    if isinstance(schema, dict):
        schema = {key: closed(value) for key, value in schema.items()}
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
    return schema


def check(objects, pool):
    for o in objects:
        if o["kind"] == "InferencePool":
            metadata = o.pop("metadata")
            jsonschema.validate(o, pool)
            o["metadata"] = metadata
        else:
            kubernetes_validate.validate(o, KUBERNETES, strict=True)
        print(f"  {o['kind']} {o['metadata']['name']}")
    by_name = {(o["kind"], o["metadata"]["name"]): o for o in objects}
    pods = by_name["Deployment", "bn-server"]["spec"]["template"]
    labels = pods["metadata"]["labels"].items()
    for kind, selector in [("Service", "selector"), ("PodDisruptionBudget", "selector"), ("InferencePool", "selector")]:
        if (kind, "bn-server") in by_name:
            wanted = by_name[kind, "bn-server"]["spec"][selector]
            assert wanted.get("matchLabels", wanted).items() <= labels, f"{kind} selects no pod"
    configs = [c["configMapRef"]["name"] for c in pods["spec"]["containers"][0]["envFrom"] if "configMapRef" in c]
    assert all(("ConfigMap", name) in by_name for name in configs), f"there is no {configs}"


def metrics_named():
    texts = [path.read_text() for path in HERE.rglob("*.yaml")]
    return set(re.findall(r"\bbn_(?:num|kv|cache)_[a-z_]+", "\n".join(texts)))


def main():
    pool = closed(pool_schema())
    for folder in ["base", "llm-d"]:
        print(folder)
        check(built(folder), pool)
    source = (HERE / "../../src/ffi/metrics.rs").read_text()
    absent = {name for name in metrics_named() if name.removeprefix("bn_") not in source}
    if absent:
        sys.exit(f"bn-server has no metrics {sorted(absent)}")
    print("all manifests are valid")


main()
