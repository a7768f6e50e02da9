#!/bin/sh
# test_windows.sh BN-CHAT.EXE: what test.sh tries, as far as a pipe under Wine goes. $WINE is Wine.
set -eu
chat=$1
wine=$(dirname "$0")/../../tests/c/wine.sh
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

fail() {
    echo "bn-chat.exe: $1"
    head -n 20 "$dir"/out "$dir"/err
    exit 1
}

# Reads input from standard input, and the expected output from the file "want".
same() {
    "$wine" "$chat" --lines "$@" > "$dir/out" 2> "$dir/err" || fail "$* ended with $?"
    cmp -s "$dir/want" "$dir/out" || fail "$* did not say what it should"
}

refuses() {
    words=$1
    shift
    code=0
    "$wine" "$chat" --lines "$@" > "$dir/out" 2> "$dir/err" < /dev/null || code=$?
    [ "$code" = 1 ] && grep -q -e "$words" "$dir/err" || fail "$* ended with $code, expected: $words"
}

printf '42\n2\n' > "$dir/want"
printf '17+25=\r\n\n1+1=\n' | same
printf 'system: Grüße\nuser: 世界 🦀\nassistant: \n' > "$dir/want"
printf '世界 🦀\n' | same builtin:echo --system 'Grüße'
# A conversation is read again, under a name that the code page of the system may lack, and in place of an older file.
printf 'one\n/save %s/世界.json\n/reset\ntwo\n/save %s/世界.json\n' "$dir" "$dir" | "$wine" "$chat" --lines builtin:echo > "$dir/out" 2> "$dir/err" ||
    fail "/save ended with $?"
[ -s "$dir/世界.json" ] && [ -s "$dir/世界.json.kv" ] || fail "nothing was saved"
[ -z "$(find "$dir" -name '*.part')" ] || fail "a part of a file stayed"
grep -q '"two' "$dir/世界.json" && ! grep -q '"one' "$dir/世界.json" || fail "the older file stayed"
printf 'user: two\nassistant: user: two\nassistant: \nuser: three\nassistant: \n' > "$dir/want"
printf '/load %s/世界.json\nthree\n' "$dir" | same builtin:echo
# saves FILE: the words of what is wrong are in "err".
saves() {
    printf 'one\n/save %s\n' "$1" | "$wine" "$chat" --lines builtin:echo > "$dir/out" 2> "$dir/err"
}

# A file that a link names, beside one of somebody else; a path of more than 259 characters, relative and whole.
ln -s 世界.json "$dir/link.json"
echo mine > "$dir/世界.json.part"
saves "$dir/link.json" && [ -L "$dir/link.json" ] && grep -q '"one' "$dir/世界.json" || fail "the link's target was not written"
[ "$(cat "$dir/世界.json.part")" = mine ] || fail "another file was overwritten"
long=$(printf '%0100d' 0)
mkdir -p "$dir/$long/$long/$long"
saves "$dir/$long/$long/$long/世界.json" || fail "/save to a long path ended with $?"
printf 'user: one\nassistant: user: one\nassistant: \nuser: three\nassistant: \n' > "$dir/want"
printf '/load %s/./%s/世界.json\nthree\n' "$dir" "$long/$long/../$long/$long" | same builtin:echo
! saves "$dir/no/such.json" && grep -q 'such.json: Path not found' "$dir/err" ||
    fail "/save to a folder that is missing does not say so"
for file in . NUL; do
    ! saves "$file" && grep -q 'not a regular file' "$dir/err" || fail "$file was written"
    ! printf '/load %s\n' "$file" | "$wine" "$chat" --lines builtin:echo > "$dir/out" 2> "$dir/err" &&
        grep -q 'not a regular file' "$dir/err" || fail "$file was read"
done
[ -z "$(find "$dir" -name '*.[0-9]*.part')" ] || fail "a part of a file stayed"
# The user's folder, by either separator.
! printf '/load ~\\no such.json\n' | "$wine" "$chat" --lines builtin:echo > "$dir/out" 2> "$dir/err" && grep -q '[Uu]sers' "$dir/err" ||
    fail "~ is not the user's folder"
export HF_HUB_OFFLINE=1
refuses 'org/name is not in the cache' hf:org/name
refuses "'no-such.gguf'\|no-such.gguf" no-such.gguf
refuses "'no/such'\|no/such" no/such
grep -q 'bn-chat hf:no/such' "$dir/err" || fail "it does not name hf:"
refuses '--context = 99999999 is out of range' --context 99999999
refuses 'there is no option' --nonsense
echo "bn-chat runs"
