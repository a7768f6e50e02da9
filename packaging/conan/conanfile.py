"""bn_engine from this source tree: `conan create packaging/conan`. Needs cargo, make and a C compiler."""

import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.files import copy, load, rm, rmdir

# An asterisk matches folders too.
SOURCES = ["Cargo.toml", "Cargo.lock", "Makefile", "build.rs", "LICENSE-*", "bindings/bindings.mk", "bindings/cpp/*.hpp",
           "deploy/deploy.mk", "dev/*", "hosts/hosts.mk", "include/*", "models/*", "packaging/*.mk", "packaging/THIRD-PARTY",
           "packaging/cmake/*", "packaging/pkg-config/*", "src/*", "tests/tests.mk", "tools/header/*"]


class BnEngine(ConanFile):
    name = "bn_engine"
    license = "MIT OR Apache-2.0"
    description = "Continuous-batching LLM engine (BitNet b1.58, Llama, Mistral, Qwen, Gemma) behind a C ABI"
    topics = ("llm", "inference", "bitnet")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False]}
    default_options = {"shared": True}

    @property
    def _root(self):
        return os.path.join(self.recipe_folder, "..", "..")

    def set_version(self):
        manifest = load(self, os.path.join(self._root, "Cargo.toml"))
        self.version = re.search(r'^version = "(.*)"', manifest, re.MULTILINE)[1]

    def export_sources(self):
        for pattern in SOURCES:
            copy(self, pattern, self._root, self.export_sources_folder)

    def validate(self):
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("bn_engine is built for Linux")

    def package_id(self):
        # A C interface, always optimized.
        del self.info.settings.compiler
        del self.info.settings.build_type

    def build(self):
        self.run("make lib convert")

    def package(self):
        self.run(f'make install PREFIX="{self.package_folder}"', cwd=self.build_folder)
        lib = os.path.join(self.package_folder, "lib")
        if self.options.shared:
            rm(self, "libbn_engine.a", lib)
        else:
            rm(self, "libbn_engine.so*", lib)
        # Conan's generators write their own.
        rmdir(self, os.path.join(lib, "pkgconfig"))
        rmdir(self, os.path.join(lib, "cmake"))
        copy(self, "LICENSE-*", self.build_folder, os.path.join(self.package_folder, "licenses"))
        copy(self, "THIRD-PARTY", os.path.join(self.build_folder, "packaging"), os.path.join(self.package_folder, "licenses"))

    def package_info(self):
        self.cpp_info.libs = ["bn_engine"]
        self.cpp_info.set_property("pkg_config_name", "bn_engine")
        self.cpp_info.set_property("cmake_file_name", "bn_engine")
        self.cpp_info.set_property("cmake_target_name", "bn_engine::bn_engine")
        if not self.options.shared:
            self.cpp_info.system_libs = ["util", "rt", "pthread", "m", "dl"]
