#!/bin/sh
# check_install.sh PREFIX MAJOR VERSION: the files that `make install` promises, and the soname.
set -eu
for file in include/bn_engine.h lib/libbn_engine.a lib/libbn_engine.so.$3 lib/libbn_engine.so.$2 lib/libbn_engine.so \
    lib/pkgconfig/bn_engine.pc lib/cmake/bn_engine/bn_engineConfig.cmake lib/cmake/bn_engine/bn_engineConfigVersion.cmake; do
    [ -f "$1/$file" ] || { echo "make install left no $file"; exit 1; }
done
"$1/bin/bn-convert" --help > /dev/null || { echo "make install left no bin/bn-convert that runs"; exit 1; }
[ "$(readlink "$1/lib/libbn_engine.so")" = "libbn_engine.so.$2" ]
[ "$(readlink "$1/lib/libbn_engine.so.$2")" = "libbn_engine.so.$3" ]
soname=$(readelf -d "$1/lib/libbn_engine.so" | sed -n 's/.*SONAME.*\[\(.*\)\].*/\1/p')
[ "$soname" = "libbn_engine.so.$2" ] || { echo "the soname is '$soname'"; exit 1; }
if grep -l '@[A-Z_]*@' "$1"/lib/pkgconfig/bn_engine.pc "$1"/lib/cmake/bn_engine/*; then
    echo "has an unreplaced @NAME@"
    exit 1
fi
