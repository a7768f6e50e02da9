"""sbom.py SBOM NOTICES: checks that the SBOM follows CycloneDX's schema, and that the notices list all of it."""

import json
import re
import sys

path, notices = sys.argv[1:]
text = open(path, encoding="utf-8").read()
bom = json.loads(text)

try:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator
except ImportError:
    schema = "its schema is not checked (PyPI: cyclonedx-python-lib[json-validation])"
else:
    error = JsonStrictValidator(SchemaVersion.from_version(bom["specVersion"])).validate_str(text)
    if error is not None:
        sys.exit(f"{path} is not CycloneDX {bom['specVersion']}: {error}")
    schema = f"valid CycloneDX {bom['specVersion']}"

noticed = set(re.findall(r"^  (\S+) (\d\S*)  ", open(notices, encoding="utf-8").read(), re.MULTILINE))
# The others are this repository's own.
packages = {(c["name"], c["version"]) for c in bom["components"] if "purl" in c}
missing = sorted(packages - noticed)
if missing or not packages:
    sys.exit(f"{notices} lacks {missing}: run make notices")
unlicensed = [c["name"] for c in bom["components"] if not c.get("licenses")]
if unlicensed:
    sys.exit(f"no license is named for {unlicensed}")
print(f"{len(packages)} packages, each with a license and in {notices}; {schema}")
