#!/bin/sh
# test.sh PREFIX VERSION: formats, vets and tests the package against an installed library: shared, with the race
# detector, with every pointer that C gets checked, and static; and without a C compiler, which needs the module purego. A
# missing Go or module is reported; in CI it is an error.
set -eu
prefix=$1
export BN_VERSION="$2" PKG_CONFIG_PATH="$prefix/lib/pkgconfig" CGO_ENABLED=1 GOFLAGS=-mod=mod GOTOOLCHAIN=local
export PKG_CONFIG="${PKG_CONFIG:-pkg-config}"
cd "$(dirname "$0")"
go=${GO:-go}
proxy=$("$go" env GOPROXY 2> /dev/null || true)
export GOPROXY=off

for tool in "$go" "$PKG_CONFIG"; do
    if ! command -v "$tool" > /dev/null; then
        echo "skipped: the tests in Go, no $tool"
        [ -z "${CI:-}" ] || { echo "CI must run them"; exit 1; }
        exit 0
    fi
done

unformatted=$("${GOFMT:-$(dirname "$(command -v "$go")")/gofmt}" -l .)
[ -z "$unformatted" ] || { echo "not formatted: $unformatted"; exit 1; }
(
    export LD_LIBRARY_PATH="$prefix/lib"
    "$go" vet ./...
    "$go" test -count=1 -timeout 5m -race ./...
    case $("$go" env GOVERSION) in
        go1.19* | go1.20*) GODEBUG=cgocheck=2 "$go" test -count=1 -timeout 5m ./... ;;
        *) GOEXPERIMENT=cgocheck2 "$go" test -count=1 -timeout 5m ./... ;;
    esac
)
"$go" test -count=1 -timeout 5m -tags bn_engine_static ./...

if ! said=$(GOPROXY=$proxy "$go" mod download 2>&1); then
    echo "skipped: Go without a C compiler, no module github.com/ebitengine/purego: $said"
    [ -z "${CI:-}" ] || { echo "CI must run it"; exit 1; }
    exit 0
fi
export CGO_ENABLED=0
"$go" vet ./...
BN_ENGINE_LIBRARY="$prefix/lib/libbn_engine.so" "$go" test -count=1 -timeout 5m ./...
# A missing library is an error, not a crash.
BN_ENGINE_LIBRARY=/nowhere "$go" test -count=1 -run TestMissingLibrary ./...
