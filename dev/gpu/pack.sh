#!/bin/sh
# Builds everything for a machine with a GPU but no Rust, into target/gpu: the library with its kernels, bench, tests, a
# generator of models. Take the repository there with this folder in it, and run dev/gpu/run.sh (docs/gpu.md).
#   NVCC=path/to/nvcc dev/gpu/pack.sh      kernels for $CUDA_ARCHS (90: H100, H200), and PTX for newer devices
#   BN_CUDA_IMAGE=FILE dev/gpu/pack.sh     with kernels that `make cuda` has made
# The tests' binary is of the dev profile: its CPU side is slow, the kernels are the same.
set -eu
cd "$(dirname "$0")/../.."
out=target/gpu
mkdir -p $out
if [ -z "${BN_CUDA_IMAGE:-}" ]; then
    image=target/cuda/kernels-${CUDA_ARCHS:=90}.fatbin
    image=$(echo "$image" | tr ' ' '-')
    if [ ! -f "$image" ] || [ -n "$(find cuda/kernels cuda/build.sh -newer "$image")" ]; then
        CUDA_ARCHS=$CUDA_ARCHS OUT=$image cuda/build.sh nvcc
    fi
    BN_CUDA_IMAGE=$PWD/$image
fi
export BN_CUDA_IMAGE

cargo build --quiet --locked --release --features bn-engine/cuda -p bn-engine -p bn-dev --lib --bin synth
tests=$(cargo test --locked --features cuda --test all --no-run 2>&1 | sed -n 's/.*Executable.*(\(.*\)).*/\1/p')
[ -n "$tests" ] || { echo "the tests do not compile: cargo test --features cuda --test all --no-run"; exit 1; }

# Give the library the name that programs look for beside themselves.
soname=$(readelf -d target/release/libbn_engine.so | sed -n 's/.*SONAME.*\[\(.*\)\].*/\1/p')
strip -o "$out/${soname:-libbn_engine.so}" target/release/libbn_engine.so
strip -o $out/synth target/release/synth
strip -o $out/tests "$tests"
flags="-std=c11 -D_GNU_SOURCE -O2 -Iinclude"
link="-Ltarget/release -lbn_engine -Wl,-rpath,\$ORIGIN -lpthread -lm"
# shellcheck disable=SC2086 # several words
{
    ${CC:-cc} $flags examples-c/bench.c -o $out/bench $link
    # Build bench again as a library, for a profiler in the same process.
    ${CC:-cc} $flags -fPIC -shared examples-c/bench.c -o $out/bench.so $link
    ${CC:-cc} $flags dev/gpu/same.c -o $out/same $link
    ${CC:-cc} $flags -fPIC -shared dev/gpu/launches.c -o $out/launches.so -ldl
}
git describe --always --dirty > $out/commit
# Do not count results of earlier runs of run.sh.
mib=$(find $out -maxdepth 1 -type f -exec ls -l {} + | awk '{ all += $5 } END { printf "%.1f", all / 1048576 }')
find $out -maxdepth 1 -type f -exec ls -lh {} + | awk '{ print $5, $NF }'
echo "$mib MiB in all"
[ "${mib%.*}" -lt 60 ] || { echo "that is more than 60 MiB"; exit 1; }
