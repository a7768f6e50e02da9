#!/bin/sh
# test.sh PREFIX VERSION WORK: builds the package and its tests against an installed library. Without a Swift compiler,
# it makes a Debian that has one in SWIFT_ROOT (as root, with mmdebstrap; 2.5 GB, two minutes) and builds there.
# SWIFT_ROOT is kept for the next time.
set -eu
prefix=$(realpath "$1")
version=$2
work=$(realpath -m "$3")
here=$(realpath "$(dirname "$0")")
golden=$(realpath "$here/../../tests/golden")
root=${SWIFT_ROOT:-$work/swift-root}

rm -rf "$work/swift"
mkdir -p "$work/swift"
cp -r "$here/Package.swift" "$here/Sources" "$golden/demo_prompts.json" "$golden/models/llama-llama3" \
    "$golden/models/bert-reranker" "$golden/adapters" "$work/swift/"
cp -r "$prefix" "$work/swift/stage"

# FOLDER PROGRAM...: runs the program in front, in a folder with the sources and the library.
run() {
    folder=$1
    shift
    "$@" env HOME="$folder" LANG=C.UTF-8 PKG_CONFIG_PATH="$folder/stage/lib/pkgconfig" LD_LIBRARY_PATH="$folder/stage/lib" \
        sh -euc "
            cd $folder
            for configuration in debug release; do
                swift build -c \$configuration > build.log 2>&1 || { cat build.log; exit 1; }
                ! grep -A 3 'warning:' build.log || exit 1
                timeout 300 .build/\$configuration/Tests $version demo_prompts.json llama-llama3 adapters
            done
            .build/debug/Example | grep -q '^17+25=42$'
        "
}

if command -v swift > /dev/null; then
    run "$work/swift" env
else
    if [ ! -x "$root/usr/bin/swiftc" ]; then
        mmdebstrap --variant=minbase --include=swiftlang,gcc,g++,libc6-dev,libstdc++-14-dev,pkgconf,git,ca-certificates \
            trixie "$root"
    fi
    rm -rf "$root/bn_engine"
    cp -r "$work/swift" "$root/bn_engine"
    # Swift finds its own libraries by /proc/self/exe.
    mount --bind /proc "$root/proc"
    trap 'umount "$root/proc"' EXIT
    run /bn_engine chroot "$root"
fi
while IFS= read -r line; do
    grep -qxF -- "$line" "$here/README.md" || { echo "README.md lacks this line of the example: $line"; exit 1; }
done < "$here/Sources/Example/main.swift"
