"""The files of the wheel besides the sources: the library, its header in Python, the licenses.

BN_WHEEL_LIBRARY and BN_WHEEL_PLATFORM make one for another machine, of a library that was built for it.
"""

import os
import subprocess
import sysconfig
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Files(BuildHookInterface):
    def initialize(self, version, build_data):
        root = Path(self.root).parents[1]
        generated = Path(self.directory, "_header.py")
        generated.parent.mkdir(parents=True, exist_ok=True)
        awk = ["awk", "-f", "tools/header/parse.awk", "-f", "tools/header/python.awk", "include/bn_engine.h"]
        with generated.open("w") as file:
            subprocess.run(awk, cwd=root, stdout=file, check=True)
        library = (root / os.environ.get("BN_WHEEL_LIBRARY", "target/c/lib/libbn_engine.so")).resolve(strict=True)
        platform = os.environ.get("BN_WHEEL_PLATFORM", sysconfig.get_platform().replace("-", "_").replace(".", "_"))
        # The file names that _library.py looks for.
        kinds = {".dll": "bn_engine.dll", ".dylib": "libbn_engine.dylib"}
        files = {generated: "_header.py", library: kinds.get(library.suffix, "libbn_engine.so")}
        files |= {root / name: Path(name).name for name in ("LICENSE-MIT", "LICENSE-APACHE", "packaging/THIRD-PARTY")}
        build_data["force_include"].update({str(path): "bn_engine/" + name for path, name in files.items()})
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + platform
