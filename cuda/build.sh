#!/bin/sh
# Builds target/cuda/tests, which tests kernels under the emulation, from cuda/tests/*.cpp or the files named. With
# `driver`: target/cuda/libcuda.so, which emulates devices. With `nvcc`: target/cuda/kernels.fatbin, the kernels for the
# devices in $CUDA_ARCHS. $OUT replaces the name of the output.
set -eu
cd "$(dirname "$0")/.."
if [ "${1:-}" = nvcc ]; then
    out=${OUT:-target/cuda/kernels.fatbin}
    mkdir -p "$(dirname "$out")"
    # Devices newer than the last of these compile the PTX when it is loaded.
    codes="-gencode=arch=compute_80,code=compute_80"
    for arch in ${CUDA_ARCHS:-80 86 89 90 100 120}; do
        codes="$codes -gencode=arch=compute_$arch,code=sm_$arch"
    done
    # shellcheck disable=SC2086 # several words
    "${NVCC:-nvcc}" -std=c++17 -fatbin $codes --threads 0 -compress-mode=size -Xptxas -warn-spills -o "$out" cuda/kernels/all.cu
    exit
fi
mkdir -p target/cuda

# The compiler must not fuse operations, so that kernels have the bits of a device.
flags="-std=c++17 -O1 -g -Wall -Wextra -Wno-unknown-pragmas -ffp-contract=off"

if [ "${1:-}" = driver ]; then
    # Macros make the names of kernels, so the preprocessor lists them.
    ${CXX:-g++} -std=c++17 -E -P -x c++ cuda/kernels/all.cu | grep -o 'inline void bn_[A-Za-z0-9_]*' | sort -u |
        sed 's/.* \(.*\)/KERNEL(\1)/' > target/cuda/kernel_names.inc
    # With -Bsymbolic-functions, a program's function of the same name, such as the library's bn_embed, does not replace
    # a kernel.
    # shellcheck disable=SC2086 # several words
    ${CXX:-g++} $flags -fPIC -shared -Itarget/cuda -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic-functions \
        -o "${OUT:-target/cuda/libcuda.so}" cuda/emulation/driver.cpp
    # The name that programs open.
    ln -sf libcuda.so target/cuda/libcuda.so.1
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
