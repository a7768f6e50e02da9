#!/bin/sh
# Checks cargo features. Tests and developer programs build the dependencies with the features that the library has by
# itself, so that all of them share one build. A dev-dependency that turns on another feature makes candle compile a
# second time. The programs of hosts/ are another workspace and use the library as it is installed: none of the
# library's packages is in it.
set -eu
list() {
    ${CARGO:-cargo} tree --locked --prefix none --format '{p} {f}' "$@" | sed 's/ (\*)$//' | LC_ALL=C sort -u
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
list --package bn-engine --edges normal,build > "$work/library"
list --workspace --edges normal,build,dev > "$work/workspace"
if ! LC_ALL=C comm -23 "$work/library" "$work/workspace" | diff /dev/null - > "$work/changed"; then
    echo "dev-dependencies change the features of what the library is built from:"
    cat "$work/changed"
    exit 1
fi

(cd hosts && list --workspace) > "$work/hosts"
if grep '^bn-engine ' "$work/hosts" || ! grep -q '^bn ' "$work/hosts"; then
    echo "the programs of hosts/ are built with the library in place of linking it"
    exit 1
fi

# Kernels for NVIDIA GPUs need no crate, and a build without nvcc names what is missing.
list --package bn-engine --features cuda --edges normal,build | grep -v '^bn-engine ' > "$work/cuda"
grep -v '^bn-engine ' "$work/library" | diff - "$work/cuda" || {
    echo "the feature cuda changes what the library is built from"
    exit 1
}
for wants in BN_CUDA_IMAGE=/dev/null NVCC=/dev/null; do
    if env -u BN_CUDA_IMAGE "$wants" "${CARGO:-cargo}" check --locked --quiet --lib --features cuda > "$work/log" 2>&1 ||
        ! grep -q "error: .*BN_CUDA_IMAGE" "$work/log"; then
        cat "$work/log"
        echo "with $wants, the feature cuda does not say what it needs"
        exit 1
    fi
done

# Pictures are optional; without their decoders they are refused in words.
"${CARGO:-cargo}" check --locked --quiet --lib --no-default-features --features demo-model
