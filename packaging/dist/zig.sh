#!/bin/sh
# zig.sh TARGET ARGUMENT...: `zig cc` for TARGET, as a C compiler, and as a linker for rustc. Replaces GCC's unwinder by
# zig's. Drops options that zig does not know or that TARGET implies, and iconv, which Rust's libc links and nothing
# calls.
set -eu
target=$1
shift
next=
for argument; do
    shift
    case $next$argument in
    -lgcc_s | -lgcc_eh) argument=-lunwind ;;
    -liconv | -fuse-ld=* | -B* | -m64 | --target=* | -mmacosx-version-min=*) continue ;;
    -Wl,--exclude-libs,* | -Wl,-O1) continue ;;
    -arch | -Wl,-exported_symbols_list) next=value: && continue ;;
    value:*) next= && continue ;;
    esac
    set -- "$@" "$argument"
done
exec ${ZIG:-python3 -m ziglang} cc -target "$target" "$@"
