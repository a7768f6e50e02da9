#!/bin/sh
# test.sh BN-CHAT DEMO: prompts through a pipe, with the embedded model and with builtin:echo; failures; SIGINT.
set -eu
chat=$1
demo=$2
golden=$(dirname "$0")/../../tests/golden/models
dir=$(mktemp -d)
child=
trap '[ -z "$child" ] || kill "$child" 2> /dev/null || true; rm -rf "$dir"' EXIT

fail() {
    echo "bn-chat: $1"
    head -n 20 "$dir"/out "$dir"/err
    exit 1
}

# Reads input from standard input, and the expected output from the file "want".
same() {
    "$chat" --lines "$@" > "$dir/out" 2> "$dir/err" || fail "$* ended with $?"
    cmp -s "$dir/want" "$dir/out" || fail "$* did not say what it should"
}

# One line on stderr that has the words, nothing on stdout, exit code 1.
refuses() {
    words=$1
    shift
    code=0
    "$chat" --lines "$@" > "$dir/out" 2> "$dir/err" || code=$?
    [ "$code" = 1 ] && [ ! -s "$dir/out" ] && [ "$(wc -l < "$dir/err")" = 1 ] && grep -q -e "$words" "$dir/err" ||
        fail "$* ended with $code, expected: $words"
}

# The embedded model completes each line by itself, and says so.
printf '42\n2\n' > "$dir/want"
printf '17+25=\n\n1+1=\r\n' | same
grep -q 'No model was given' "$dir/err" || fail "no word on the embedded model"
printf '42\n' > "$dir/want"
printf '17+25=' | same "$demo" --temperature 0 --threads 1
printf '17+25=' | same "$demo" --draft-model="$demo"

# One prompt: of the command line, after the text of a pipe, or all of the pipe's text.
same "$demo" '17+25=' < /dev/null
same -m "$demo" '17+25=' < /dev/null
same --model="$demo" -p '17+25=' < /dev/null
printf '17+25=\n\n' | same "$demo" -p -
printf '17+25=\n\n' | "$chat" "$demo" > "$dir/out" 2> "$dir/err" && cmp -s "$dir/want" "$dir/out" || fail "a pipe is no prompt"
printf 'user: a\nb\n\n/quit\nassistant: \n' > "$dir/want"
printf 'a\nb\n' | same builtin:echo /quit
printf 'user: a\n/quit\nassistant: \n' > "$dir/want"
printf 'a\n/quit\n' | "$chat" builtin:echo > "$dir/out" 2> "$dir/err"
cmp -s "$dir/want" "$dir/out" || fail "all of a pipe is not one prompt"

# A conversation: the answer of echo is the prompt.
cat > "$dir/want" << 'END'
system: Be brief.
user: Grüße, 世界! 🦀
assistant: 
system: Be brief.
user: Grüße, 世界! 🦀
assistant: system: Be brief.
user: Grüße, 世界! 🦀
assistant: 
user:  /not a command
assistant: 
user: new
assistant: 
END
printf 'Grüße, 世界! 🦀\n /not a command\n/reset\n/system\nnew\n' | same builtin:echo --system 'Be brief.'
printf 'hello\n/stats\nworld\n/stats\nagain\n/stats\n' | "$chat" --lines builtin:echo > "$dir/out" 2> "$dir/err"
sed -n 's/^last turn: .* tokens, \([0-9]*\) of them cached.*/\1/p' "$dir/out" > "$dir/cached"
[ "$(sort -n -u "$dir/cached" | wc -l)" = 3 ] && sort -n -c "$dir/cached" || fail "cached tokens do not grow"
grep -q '^batch ' "$dir/out" || fail "/stats has no report"

# Several lines as one prompt.
printf 'user: a\n\n/b\nassistant: \n' > "$dir/want"
printf '"""\na\n\n/b"""\n' | same builtin:echo
printf '"""/a\nb\n"""\n' | "$chat" --lines builtin:echo | head -n 1 | grep -qx 'user: /a' || fail "a block is no command"

# A conversation that outgrows the context forgets its oldest turns. A question that alone is too long fails.
printf 'one\ntwo\nthree\nfour\n' | "$chat" --lines builtin:echo --context 128 > "$dir/out" 2> "$dir/err" ||
    fail "a long chat failed"
grep -q 'forgotten' "$dir/err" && grep -q '^user: four' "$dir/out" || fail "nothing was forgotten"
printf '%0200d\n' 1 | refuses 'the context of 128 tokens has to hold it' builtin:echo --context 128

# A saved conversation is a file, where a link leads if it is one. Nothing else is written or read.
echo old > "$dir/kept"
ln -s kept "$dir/link"
mkfifo "$dir/pipe"
printf 'one\n/save %s/link\n/load %s/kept\ntwo\n' "$dir" "$dir" | "$chat" --lines builtin:echo > "$dir/out" 2> "$dir/err" ||
    fail "/save to a link ended with $?"
[ -L "$dir/link" ] && grep -q '"one"' "$dir/kept" && [ "$(ls "$dir"/kept* "$dir"/link* | wc -l)" = 3 ] ||
    fail "/save left other files"
for command in "/save $dir/pipe" "/load $dir/pipe" "/load /dev/zero" "/save $dir"; do
    printf 'one\n%s\n' "$command" | timeout 60 "$chat" --lines builtin:echo > "$dir/out" 2> "$dir/err" && fail "$command worked"
    grep -q 'not a regular file' "$dir/err" && [ -p "$dir/pipe" ] || fail "$command was not refused"
done
mkdir "$dir/part.kv"
printf 'one\n/save %s/part\n' "$dir" | "$chat" --lines builtin:echo > "$dir/out" 2> "$dir/err" && fail "half of /save is enough"
grep -q 'part.kv: it is not a regular file' "$dir/err" && grep -q '"one"' "$dir/part" || fail "/save does not say what failed"
truncate -s 20G "$dir/sparse"
printf '/load %s/sparse\n' "$dir" | "$chat" --lines builtin:echo > "$dir/out" 2> "$dir/err" && fail "20 GB were read"
grep -q 'too large' "$dir/err" || fail "20 GB were not refused"

# Errors are reported in one line.
refuses '--pictures: cannot open' --pictures /nowhere/part "$demo" 17+25= < /dev/null
printf '/image a.png\n' | refuses 'this model sees no images' builtin:echo
printf '/image\n' | refuses '/image needs the name of a file' builtin:echo
refuses 'this model sees no images' builtin:echo hello --image a.png < /dev/null

# A tiny model that sees: an image on the command line is one of /image. What is none is refused by its name.
"${PYTHON:-python3}" "$(dirname "$0")/../server/tests/seeing.py" "$dir/see"
picture=$dir/see/picture.png
printf "/image '%s'\nWhat is it?\n" "$picture" | "$chat" --lines "$dir/see" --temperature 0 --max-tokens 8 > "$dir/want"
[ -s "$dir/want" ] || fail "no answer about an image"
same "$dir/see" --temperature 0 --max-tokens 8 --image "$picture" 'What is it?' < /dev/null
head -c 100 "$picture" > "$dir/cut.png"
refuses 'cut.png: ' "$dir/see" hello --image "$dir/cut.png" < /dev/null
{ head -c 60 "$picture"; printf 'x'; tail -c +62 "$picture"; } > "$dir/damaged.png"
refuses 'damaged.png: the picture is damaged' "$dir/see" hello --image "$picture" --image "$dir/damaged.png" < /dev/null
refuses "$dir/see: it is not a regular file" "$dir/see" hello --image "$dir/see" < /dev/null
mkfifo "$dir/pipe.png"
refuses 'pipe.png: it is not a regular file' "$dir/see" hello --image "$dir/pipe.png" < /dev/null
refuses 'nowhere.png: ' "$dir/see" hello --image /nowhere.png < /dev/null
refuses 'config.json: ' "$dir/see" hello --image "$dir/see/config.json" < /dev/null
refuses '/nowhere' /nowhere < /dev/null
refuses 'mtp is set' --mtp 1 < /dev/null
refuses '/nowhere/drafter' --drafter /nowhere/drafter < /dev/null
refuses '/nowhere' --draft-model /nowhere < /dev/null
refuses '/nowhere/draft_model' /nowhere/draft_model < /dev/null
refuses 'vocabulary' --draft-model builtin:echo < /dev/null
head -c 100000 "$demo" > "$dir/cut.gguf"
refuses 'cut.gguf' "$dir/cut.gguf" < /dev/null
echo 'version https://git-lfs.github.com/spec/v1' > "$dir/pointer.gguf"
refuses 'git lfs pull' "$dir/pointer.gguf" < /dev/null
refuses "'x'" --top-p x < /dev/null
refuses 'no option' --quick < /dev/null
refuses '--top-p needs a value' --top-p < /dev/null
refuses 'two models' -m a b c < /dev/null
refuses 'two prompts' -p a b c < /dev/null
refuses 'is too much' a b c < /dev/null
refuses 'standard input is empty' builtin:echo -p - < /dev/null
refuses 'makes embeddings: it does not chat' "$golden/bert-embedding.gguf" < /dev/null
refuses 'scores pairs of texts: it does not chat' "$golden/bert-reranker.gguf" < /dev/null
refuses 'no command' builtin:echo << 'END'
/quick
END
refuses 'UTF-8' builtin:echo << END
$(printf 'a\377')
END

# The end of the reader is no crash; a full disk is an error.
printf 'a\nb\n' | { "$chat" --lines builtin:echo 2> "$dir/err" || true; } | head -n 0
[ ! -s "$dir/err" ] || fail "it complains of a closed pipe"
"$chat" --lines builtin:echo hi < /dev/null > /dev/full 2> "$dir/err" && fail "a full disk is no error"
grep -q 'cannot write the output: No space left' "$dir/err" || fail "it does not say that the disk is full"

# Waits for the first text of an answer.
begun() {
    tries=0
    until [ -s "$dir/out" ]; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || fail "no answer came"
        sleep 0.05
    done
}

# SIGINT cancels the answer, of which there are three seconds, and the program goes on.
mkfifo "$dir/in"
"$chat" --lines 'builtin:echo?us_per_token=10000' < "$dir/in" > "$dir/out" 2> "$dir/err" &
child=$!
exec 3> "$dir/in"
printf '%0300d\n' 1 >&3
begun
kill -INT "$child"
printf '/reset\nhi\n' >&3
exec 3>&-
wait "$child" || fail "it ended with $? after SIGINT"
child=
grep -q 'cancelled' "$dir/err" && [ "$(tail -n 2 "$dir/out" | head -n 1)" = 'user: hi' ] || fail "SIGINT did not cancel"
[ "$(wc -c < "$dir/out")" -lt 300 ] || fail "the cancelled answer is whole"

# Where nothing is answered, SIGINT ends the program.
rm "$dir/in"
mkfifo "$dir/in"
rm "$dir/out"
"$chat" --lines builtin:echo < "$dir/in" > "$dir/out" 2> "$dir/err" &
child=$!
exec 3> "$dir/in"
printf 'hi\n' >&3
begun
sleep 1
kill -INT "$child"
code=0
wait "$child" || code=$?
exec 3>&-
child=
[ "$code" = 130 ] || fail "it ended with $code after SIGINT at a prompt"
echo "bn-chat answers, forgets, refuses and cancels"
