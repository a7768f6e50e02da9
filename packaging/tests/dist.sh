#!/bin/sh
# dist.sh FOLDER: uses the archives and wheels of FOLDER like a user who downloaded them: checks the sums, unpacks,
# compiles hello.c, runs it and the programs, in minimal systems. Each part reports what it skips where a tool is
# missing.
set -eu
out=$(realpath "$1")
cd "$(dirname "$0")/../.."
work=$PWD/target/dist/tried
# A system older than this machine's, with a compiler and Python; kept for the next time.
old=$PWD/target/dist/old-root
rm -rf "$work" && mkdir -p "$work"

fail() {
    echo "$1"
    exit 1
}
skip() {
    echo "skipped: $1"
}
has() {
    command -v "$1" > /dev/null
}
# WHAT PROGRAM...: the program prints hello's story.
tells() {
    what=$1
    shift
    "$@" > "$work/hello.out" 2> "$work/hello.err" || { cat "$work/hello.err" && fail "$what: does not run"; }
    grep -q '^Once upon a time.' "$work/hello.out" || fail "$what: no story"
    echo "$what: ok"
}
# WHAT BN_CHAT...: bn-chat adds.
adds() {
    what=$1
    shift
    [ "$(printf '17+25=\n' | "$@" 2> /dev/null | tr -d '\r')" = 42 ] || fail "$what: does not add"
    echo "$what: ok"
}
# WHAT BN_SERVER...: bn-server adds, and ends when it is asked to.
serves() {
    what=$1
    shift
    "$@" --port 18098 2> "$work/server.err" &
    server=$!
    curl -s --retry 30 --retry-connrefused --fail -o /dev/null http://127.0.0.1:18098/health &&
        curl -sS http://127.0.0.1:18098/v1/completions -d '{"prompt": "17+25=", "max_tokens": 8}' > "$work/server.out" || true
    kill "$server" && wait "$server" || { cat "$work/server.err" && fail "$what: does not end"; }
    grep -q '"text":"42"' "$work/server.out" || { cat "$work/server.err" && fail "$what: does not add"; }
    echo "$what: ok"
}
# $inside ROOT PROGRAM...: inside another system, which has no /proc, so that programs cannot tell where they are.
inside="env LD_LIBRARY_PATH=/bn/lib chroot"
# NAME: its folder, if it is among the archives.
unpacked() {
    found=$(ls "$out"/bn_engine-*-"$1".tar.gz "$out"/bn_engine-*-"$1".zip 2> /dev/null | head -n 1)
    [ -n "$found" ] || return 1
    printf '\n-- %s\n' "$1"
    case $found in
    *.zip) "${PYTHON:-python3}" -m zipfile -e "$found" "$work" ;;
    *) tar -xzf "$found" -C "$work" ;;
    esac
    folder=$work/$(basename "$(basename "$found" .tar.gz)" .zip)
    for file in include/bn_engine.h lib/pkgconfig/bn_engine.pc lib/cmake/bn_engine/bn_engineConfig.cmake \
        share/doc/bn_engine/LICENSE-MIT share/doc/bn_engine/THIRD-PARTY share/doc/bn_engine/bn_engine.cdx.json \
        share/doc/bn_engine/programs/THIRD-PARTY share/doc/bn_engine/programs/bn_engine-programs.cdx.json; do
        [ -s "$folder/$file" ] || fail "$found has no $file"
    done
}
flags() {
    PKG_CONFIG_PATH="$folder/lib/pkgconfig" pkg-config --cflags --libs "$@"
}

(cd "$out" && sha256sum --check --quiet SHA256SUMS)
echo "the sums are right"

# Runs in a root with nothing but this machine's C library.
bare() {
    root=$work/bare
    mkdir -p "$root/tmp"
    for file in /lib64/ld-linux-x86-64.so.2 $(for one in c m dl pthread rt util; do
        echo /lib/x86_64-linux-gnu/lib$one.so.[0-9]
    done); do
        install -D "$file" "$root$file"
    done
    cp -r "$folder" "$root/bn"
    adds "bn-chat beside a C library alone" $inside "$root" /bn/bin/bn-chat
    serves "bn-server beside a C library alone" $inside "$root" /bn/bin/bn-server
    $inside "$root" /bn/bin/bn-convert --help > /dev/null || fail "bn-convert does not run"
}

# Debian 11: glibc 2.31, GCC 10, Python 3.9 with pip 20.3.
older() {
    [ -x "$old/usr/bin/gcc" ] || mmdebstrap --quiet --variant=minbase \
        --include=gcc,libc6-dev,pkg-config,python3-cffi,python3-pip bullseye "$old" http://deb.debian.org/debian
    rm -rf "$old/bn" && cp -r "$folder" "$old/bn" && cp examples-c/hello.c "$old/bn/"
    chroot "$old" sh -ec 'cd /bn && export PKG_CONFIG_PATH=/bn/lib/pkgconfig
        cc -std=c11 hello.c -o hello $(pkg-config --cflags --libs bn_engine)
        cc -std=c11 hello.c -o hello-static $(pkg-config --cflags --libs bn_engine-static)'
    tells "hello.c compiled in Debian 11" $inside "$old" /bn/hello
    tells "hello.c, the library static, in Debian 11" $inside "$old" /bn/hello-static
    adds "bn-chat in Debian 11" $inside "$old" /bn/bin/bn-chat
    serves "bn-server in Debian 11" $inside "$old" /bn/bin/bn-server
    wheel=$(ls "$out"/*manylinux*x86_64.whl)
    cp "$wheel" "$old/bn/"
    # Install into the system itself, which replaces an older wheel.
    chroot "$old" sh -ec 'pip3 --version; pip3 install --quiet --no-index --no-deps --force-reinstall /bn/*.whl' \
        > "$work/pip.out" 2>&1 || { cat "$work/pip.out" && fail "pip does not take the wheel"; }
    story=$(chroot "$old" python3 -c 'import bn_engine
with bn_engine.Engine() as engine:
    print(engine.generate("17+25=").text)')
    [ "$story" = 42 ] || fail "the wheel does not add: $story"
    echo "the wheel in Debian 11, $(cut -d' ' -f1,2 "$work/pip.out" | head -n 1): ok"
}

if unpacked linux-x86_64; then
    mkdir -p "$work/use"
    CC=${CC:-cc} CXX=${CXX:-c++} CMAKE=${CMAKE:-cmake} PKG_CONFIG=${PKG_CONFIG:-pkg-config} \
        tests/abi/use_install.sh "$folder" "$work/use" 2> "$work/use.err" || { cat "$work/use.err" && exit 1; }
    ${CC:-cc} -std=c11 -O2 -D_GNU_SOURCE -Iinclude tests/c/unload.c -o "$work/unload" -ldl -lpthread
    "$work/unload" "$folder"/lib/libbn_engine.so
    if [ "$(id -u)" = 0 ]; then
        bare
        if [ -x "$old/usr/bin/gcc" ] || has mmdebstrap; then older; else skip "an older Debian, no mmdebstrap"; fi
    else
        skip "systems of their own, which need root"
    fi
fi

if unpacked linux-aarch64; then
    if has aarch64-linux-gnu-gcc && has qemu-aarch64; then
        libc=$(dirname "$(realpath "$(aarch64-linux-gnu-gcc -print-file-name=libc.so.6)")")
        run="qemu-aarch64 -cpu max -L $(dirname "$libc") -E LD_LIBRARY_PATH=$folder/lib:$libc"
        aarch64-linux-gnu-gcc -std=c11 examples-c/hello.c -o "$work/hello-arm" $(flags bn_engine)
        tells "hello.c under qemu" $run "$work/hello-arm"
        aarch64-linux-gnu-gcc -std=c11 -static examples-c/hello.c -o "$work/hello-arm-static" \
            $(flags --static bn_engine) 2> "$work/use.err" || { cat "$work/use.err" && exit 1; }
        tells "hello.c, everything static, under qemu" $run "$work/hello-arm-static"
        adds "bn-chat under qemu" $run "$folder/bin/bn-chat"
        $run "$folder/bin/bn-convert" --help > /dev/null
        $run "$folder/bin/bn-server" --version > /dev/null
    else
        skip "running it, no gcc-aarch64-linux-gnu or qemu-user"
    fi
fi

if unpacked linux-musl-x86_64; then
    packaging/dist/zig.sh x86_64-linux-musl -std=c11 -O2 -static examples-c/hello.c -o "$work/hello-musl" \
        $(flags bn_engine-static)
    tells "hello.c, everything static" "$work/hello-musl"
    "$folder/bin/bn-convert" --help > /dev/null
    if [ "$(id -u)" = 0 ] && has apt-get; then
        # A root with only the musl of Debian's package.
        mkdir -p "$work/musl"
        (cd "$work/musl" && apt-get -qq download musl > apt.log 2>&1 && dpkg -x musl_*.deb root)
        cp -r "$folder" "$work/musl/root/bn"
        adds "bn-chat beside musl alone" $inside "$work/musl/root" /bn/bin/bn-chat
        serves "bn-server beside musl alone" $inside "$work/musl/root" /bn/bin/bn-server
    else
        skip "the shared library, which needs musl"
    fi
fi

if unpacked windows-x86_64; then
    if has "${MINGW}gcc" && has "$WINE"; then
        "${MINGW}gcc" -std=c11 -D__USE_MINGW_ANSI_STDIO=1 examples-c/hello.c -o "$folder/bin/hello.exe" \
            $(flags bn_engine)
        # Wine before version 9 lacks this system library.
        "${MINGW}gcc" -std=c11 -shared -O2 tests/c/wine_bcryptprimitives.c -o "$folder/bin/bcryptprimitives.dll" \
            -ladvapi32
        export WINEPREFIX="$work/wine" WINEDEBUG=-all WINE
        tells "hello.exe under Wine" tests/c/wine.sh "$folder/bin/hello.exe"
        adds "bn-chat.exe under Wine" tests/c/wine.sh "$folder/bin/bn-chat.exe"
        hosts/server/tests/windows.sh "$folder/bin/bn-server.exe"
        tests/c/wine.sh "$folder/bin/bn-convert.exe" --help > /dev/null || fail "bn-convert.exe does not run"
    else
        skip "running it, no MinGW-w64 or Wine"
    fi
fi

for machine in aarch64 x86_64; do
    if unpacked macos-$machine; then
        for file in "$folder"/lib/*.1.dylib "$folder/bin/bn-chat" "$folder/bin/bn-server"; do
            ${OBJDUMP:-llvm-objdump} --macho --private-headers "$file" | grep -q 'name @rpath/libbn_engine.1.dylib ' ||
                fail "$file does not name the library by its run path"
        done
        echo "the library has its name by the run path, and the programs need it so"
        skip "running it, which takes a Mac"
    fi
done
