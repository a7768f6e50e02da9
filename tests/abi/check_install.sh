#!/bin/sh
# check_install.sh PREFIX SONAME FILE SYMBOLS: the files that `make install` promises, and the shared object's soname.
set -eu
for file in include/bn_engine.h include/bn_engine.hpp include/bn_engine_values.hpp lib/libbn_engine.a "lib/$3" "lib/$2" lib/libbn_engine.so lib/pkgconfig/bn_engine.pc \
    lib/pkgconfig/bn_engine-static.pc \
    lib/cmake/bn_engine/bn_engineConfig.cmake lib/cmake/bn_engine/bn_engineConfigVersion.cmake share/man/man3/bn_engine.3 \
    share/man/man1/bn-convert.1 \
    share/doc/bn_engine/LICENSE-MIT share/doc/bn_engine/LICENSE-APACHE share/doc/bn_engine/THIRD-PARTY; do
    [ -s "$1/$file" ] || { echo "make install left no $file"; exit 1; }
done
while read -r name; do
    [ -s "$1/share/man/man3/$name.3" ] || { echo "make install left no manual page of $name"; exit 1; }
done < "$4"
programs=bn-convert
# The programs of hosts/, if they were built before.
if [ -e "$1/bin/bn-server" ]; then
    programs="bn-convert bn-chat bn-server"
    for file in man/man1/bn-chat.1 man/man1/bn-server.1 doc/bn_engine/programs/THIRD-PARTY \
        bash-completion/completions/bn-server zsh/site-functions/_bn-server fish/vendor_completions.d/bn-server.fish; do
        [ -s "$1/share/$file" ] || { echo "make install left no share/$file"; exit 1; }
    done
    grep -qx "ExecStart=$1/bin/bn-server" "$1/lib/systemd/system/bn-server.service"
fi
for program in $programs; do
    "$1/bin/$program" --help > /dev/null || { echo "make install left no bin/$program that runs"; exit 1; }
done
[ "$(readlink "$1/lib/libbn_engine.so")" = "$2" ]
[ "$(readlink "$1/lib/$2")" = "$3" ]
soname=$(readelf -d "$1/lib/libbn_engine.so" | sed -n 's/.*SONAME.*\[\(.*\)\].*/\1/p')
[ "$soname" = "$2" ] || { echo "the soname is '$soname'"; exit 1; }
readelf -d "$1/lib/libbn_engine.so" | grep -q 'FLAGS.*NOW' || { echo "the library is not linked with -z now"; exit 1; }
if grep -l -e '@[A-Z_]*@' -e "$1" "$1"/lib/pkgconfig/*.pc "$1"/lib/cmake/bn_engine/*; then
    echo "has an unreplaced @NAME@, or the prefix: it could not be moved"
    exit 1
fi
if command -v mandoc > /dev/null && mandoc -T lint -W warning "$1"/share/man/man[13]/* | grep -v 'missing date'; then
    echo "manual pages that mandoc warns of"
    exit 1
fi
