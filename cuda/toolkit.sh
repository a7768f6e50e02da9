#!/bin/sh
# Builds a CUDA 13.0 toolkit tree (compiler, headers, tools; no GPU or driver needed) in the folder $1 from PyPI wheels.
# Linux x86_64. Needs python3 with pip, and a host g++ for nvcc.
set -eu
[ $# = 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
mkdir -p "$1"
root=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
# The compiler is CUDA 13.0 Update 2: its PTX is 9.0, which drivers from 580 on take. cuobjdump and nvdisasm are not on
# PyPI before 13.2; they only read what the compiler wrote.
cat > "$work/requirements.txt" <<'R'
nvidia-cuda-nvcc==13.0.88 --hash=sha256:56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03
nvidia-nvvm==13.0.88 --hash=sha256:c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0
nvidia-cuda-crt==13.0.88 --hash=sha256:2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4
nvidia-cuda-runtime==13.0.96 --hash=sha256:7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548
nvidia-cuda-cccl==13.0.85 --hash=sha256:e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649
nvidia-cuda-cuobjdump==13.2.51 --hash=sha256:95c69d3ddf0c2c1f535ec44c3433a66aeee19f588d9d22f73356e20b25f12b50
nvidia-cuda-nvdisasm==13.2.51 --hash=sha256:5a7acf77c55d6d2911ed6155d4d5bc156ffadf9df7a68a89b0c1155f4b13688c
R
# compute-sanitizer needs a device to run: only for machines that have one.
[ -z "${TOOLKIT_SANITIZER:-}" ] || cat >> "$work/requirements.txt" <<'R'
nvidia-cuda-sanitizer-api==13.0.85 --hash=sha256:b1efff95f63b6fe40dc83801d598550542364393957775912a1abf396904331c
R
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
    --dest "$work/wheels" --requirement "$work/requirements.txt"
# A wheel is a zip file. All of these put their files under nvidia/cu13/.
for wheel in "$work"/wheels/*.whl; do
    python3 -m zipfile -e "$wheel" "$work/tree"
done
cp -R "$work/tree/nvidia/cu13/." "$root/"
rm -rf "$root/.metadata"
# python3 -m zipfile drops the modes.
for file in "$root"/bin/* "$root"/nvvm/bin/*; do
    case $file in *.profile | *.so) ;; *) [ ! -f "$file" ] || chmod 755 "$file" ;; esac
done
# Links that the toolkit has and the wheels lack.
ln -sfn lib "$root/lib64"
for library in "$root"/lib/lib*.so.[0-9]*; do
    [ -e "$library" ] || continue
    name=$(basename "$library")
    [ -e "$root/lib/${name%%.so.*}.so" ] || ln -s "$name" "$root/lib/${name%%.so.*}.so"
done
"$root/bin/nvcc" --version
