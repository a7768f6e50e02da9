"""xcframework.py HEADER OUT.xcframework ARM64.dylib X86_64.dylib: an XCFramework for macOS.

Laid out as `xcodebuild -create-xcframework` does: one library for both processors, the header, a module map for Swift's
package. LIPO names LLVM's lipo."""

from __future__ import annotations

import os
import plistlib
import shutil
import subprocess
import sys
from pathlib import Path

MODULE = 'module CBnEngine {\n    header "bn_engine.h"\n    export *\n}\n'
ARCHITECTURES = ["arm64", "x86_64"]
IDENTIFIER = "macos-" + "_".join(ARCHITECTURES)


def main() -> None:
    header, out, *dylibs = map(Path, sys.argv[1:])
    shutil.rmtree(out, ignore_errors=True)
    headers = out / IDENTIFIER / "Headers"
    headers.mkdir(parents=True)
    shutil.copy(header, headers)
    (headers / "module.modulemap").write_text(MODULE)
    name = dylibs[0].name
    library = out / IDENTIFIER / name
    subprocess.run([os.environ.get("LIPO", "llvm-lipo"), "-create", *dylibs, "-output", library], check=True)
    about = {
        "BinaryPath": name,
        "HeadersPath": headers.name,
        "LibraryIdentifier": IDENTIFIER,
        "LibraryPath": name,
        "SupportedArchitectures": ARCHITECTURES,
        "SupportedPlatform": "macos",
    }
    info = {"AvailableLibraries": [about], "CFBundlePackageType": "XFWK", "XCFrameworkFormatVersion": "1.0"}
    (out / "Info.plist").write_bytes(plistlib.dumps(info))


main()
