"""sbom.py OUT [hosts]: what the library, or the programs, are built from, on one system or another, in CycloneDX: of
`cargo metadata`, Cargo.lock.

The same tree gives the same bytes: the time is that of SOURCE_DATE_EPOCH, the serial number that of the content.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from datetime import datetime, timezone
from typing import Any


def checksums(folder: str) -> dict[tuple[str, str], str]:
    """SHA-256 sums of packages by name and version."""
    with open(os.path.join(folder, "Cargo.lock"), encoding="utf-8") as file:
        blocks = file.read().split("[[package]]")
    fields = [dict(re.findall(r'^(\w+) = "(.*)"$', block, re.MULTILINE)) for block in blocks]
    return {(one["name"], one["version"]): one["checksum"] for one in fields if "checksum" in one}


def purl(package: dict[str, Any]) -> str:
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package: dict[str, Any], sums: dict[tuple[str, str], str]) -> dict[str, Any]:
    # Some packages still separate licenses by a slash.
    one: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl(package),
        "name": package["name"],
        "version": package["version"],
        "licenses": [{"expression": re.sub(r"\s*/\s*", " OR ", package["license"])}],
    }
    # A registry's package may have the name of one of ours.
    if package["source"]:
        one["purl"] = purl(package)
    if (package["name"], package["version"]) in sums:
        one["hashes"] = [{"alg": "SHA-256", "content": sums[package["name"], package["version"]]}]
    if package["repository"]:
        one["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return one


def roots(metadata: dict[str, Any]) -> list[str]:
    root = metadata["resolve"]["root"]
    return [root] if root else list(metadata["workspace_members"])


def graph(metadata: dict[str, Any]) -> dict[str, list[str]]:
    """The roots' packages, and the dependencies of each, without build and test dependencies."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    needs: dict[str, list[str]] = {}
    todo = roots(metadata)
    while todo:
        package = todo.pop()
        if package not in needs:
            deps = nodes[package]["deps"]
            needs[package] = [dep["pkg"] for dep in deps if any(kind["kind"] is None for kind in dep["dep_kinds"])]
            todo += needs[package]
    return needs


def main() -> None:
    folder = sys.argv[2] if len(sys.argv) > 2 else "."
    cargo = [os.environ.get("CARGO", "cargo"), "metadata", "--format-version", "1", "--locked"]
    metadata = json.loads(subprocess.run(cargo, cwd=folder, stdout=subprocess.PIPE, check=True).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    needs, sums = graph(metadata), checksums(folder)
    components = [component(packages[one], sums) for one in needs]
    components.sort(key=lambda one: str(one["bom-ref"]))
    first, *others = [next(one for one in components if one["bom-ref"] == purl(packages[root])) for root in roots(metadata)]
    if others:
        whole = {"type": "application", "bom-ref": "bn_engine-programs", "name": "bn_engine-programs"}
        first = whole | {"version": first["version"], "licenses": first["licenses"]}
    dependencies = [
        {"ref": purl(packages[one]), "dependsOn": sorted({purl(packages[dep]) for dep in needs[one]})}
        for one in sorted(needs, key=lambda one: purl(packages[one]))
    ]
    if others:
        members = sorted(purl(packages[root]) for root in roots(metadata))
        dependencies.insert(0, {"ref": first["bom-ref"], "dependsOn": members})
    about: dict[str, Any] = {"component": first}
    if "SOURCE_DATE_EPOCH" in os.environ:
        at = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), timezone.utc)
        about["timestamp"] = at.isoformat().replace("+00:00", "Z")
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": about,
        "components": [one for one in components if one is not first],
        "dependencies": dependencies,
    }
    bom["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(bom, sort_keys=True)).urn
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        json.dump(bom, out, indent=1, sort_keys=True)
        out.write("\n")


main()
