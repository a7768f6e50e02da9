#!/bin/sh
# Builds target/cuda/tests, the tests of the kernels under the emulation, of cuda/tests/*.cpp or of the files named;
# with `driver`, the driver that emulates a device, target/cuda/libcuda.so; with `nvcc`, the kernels for devices.
set -eu
cd "$(dirname "$0")/.."
mkdir -p target/cuda

if [ "${1:-}" = nvcc ]; then
    for arch in sm_80 sm_90; do
        "${NVCC:-nvcc}" -std=c++17 -cubin -arch="$arch" -Xptxas -v,-warn-spills \
            -o "target/cuda/kernels.$arch.cubin" cuda/kernels/all.cu
    done
    exit
fi

# Nothing is fused that is not written so: the kernels' bits are those of the device.
flags="-std=c++17 -O1 -g -Wall -Wextra -Wno-unknown-pragmas -ffp-contract=off"

if [ "${1:-}" = driver ]; then
    # Macros make the kernels' names: those that the preprocessor leaves.
    ${CXX:-g++} -std=c++17 -E -P -x c++ cuda/kernels/all.cu | grep -o 'inline void bn_[A-Za-z0-9_]*' | sort -u |
        sed 's/.* \(.*\)/KERNEL(\1)/' > target/cuda/kernel_names.inc
    # shellcheck disable=SC2086 # several words
    ${CXX:-g++} $flags -fPIC -shared -Itarget/cuda -o target/cuda/libcuda.so cuda/emulation/driver.cpp
    exit
fi

flags="$flags -fsanitize=address,undefined -fno-sanitize-recover=all"
[ $# -gt 0 ] || set -- cuda/tests/*.cpp
objects=
for source in cuda/tests/main.cpp "$@"; do
    object="target/cuda/$(basename "$source" .cpp).o"
    case " $objects " in *" $object "*) continue ;; esac
    # shellcheck disable=SC2086 # several words
    ${CXX:-g++} $flags -c -o "$object" "$source"
    objects="$objects $object"
done
# shellcheck disable=SC2086
${CXX:-g++} $flags -o "${OUT:-target/cuda/tests}" $objects
