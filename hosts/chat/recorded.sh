#!/bin/sh
# recorded.sh BN-CHAT: plays a chat into tmux key by key, and prints the screen as tmux shows it, with the keys of each
# step after "#". Fails if the screen does not show the expected text.
set -eu
dir=$(mktemp -d)
trap 'screen kill-server 2> /dev/null || true; rm -rf "$dir"' EXIT
mkdir "$dir/bin" "$dir/home"
ln -s "$(realpath "$1")" "$dir/bin/bn-chat"

screen() {
    tmux -S "$dir/tmux" -f /dev/null "$@"
}
# All lines since the start, without the empty rest of the screen.
lines() {
    screen capture-pane -p -S - -t chat | sed -e :a -e '/^\n*$/{$d;N;ba' -e '}'
}

# Literal text, or the name of a key.
press() {
    case $1 in
    Enter | Left | Home | Up | Tab | BSpace | C-c | C-d) screen send-keys -t chat "$1" ;;
    *) screen send-keys -t chat -l -- "$1" ;;
    esac
}

# The output since the step began. Its first line is the line that the keys went to.
new() {
    lines | tail -n "+$before"
}

# STATE TEXT: waits until TEXT is on the screen and, if STATE is "ready", something asks for input in the last line.
await() {
    tries=0
    until new > "$dir/new" && grep -qF -e "$2" "$dir/new" &&
        { [ "$1" = begun ] || tail -n 1 "$dir/new" | grep -qx '>\|\.\.\.\|\$'; }; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || { echo "'$2' did not come:" && cat "$dir/new" && exit 1; }
        sleep 0.1
    done
}

# TEXT KEY...: presses the keys, waits for what TEXT says, prints both.
step() {
    wanted=$1
    shift
    before=$(lines | wc -l)
    echo "# $*"
    for key; do press "$key"; done
    await ready "$wanted"
    sed '$d' "$dir/new"
}

# The same, with Ctrl-C once the answer has begun.
interrupted() {
    before=$(lines | wc -l)
    echo "# $1 Enter, C-c during the answer"
    press "$1"
    press Enter
    await begun 'user: '
    press C-c
    await ready '(cancelled)'
    sed '$d' "$dir/new"
}

env -i HOME="$dir/home" PATH="$dir/bin:$PATH" LC_ALL=C.UTF-8 LD_LIBRARY_PATH="${LD_LIBRARY_PATH-}" \
    tmux -S "$dir/tmux" -f /dev/null new-session -d -s chat -x 120 -y 50 -c "$dir/home" "PS1='\$ ' exec sh"
before=1
await ready '$'

# The model inside the library: editing, the prompt before, completion of commands and settings.
step 'To chat: bn-chat MODEL' bn-chat Enter
step '42' '1725=' Left Left Left + Enter
step '43' Up Left BSpace 6 Enter
step '(temperature is 0)' /se Tab temp Tab 0 Enter
step '$' C-d

# builtin:echo answers with the prompt that it was given, slowly.
step '>' "bn-chat 'builtin:echo?us_per_token=20000' --system 'Be brief.'" Enter
step 'user: Hello' Helo Left l Home Enter
step '...' '"""' Enter
step '...' 'Two' Enter
step 'user: Two' 'lines"""' Enter
step 'saved: 5 messages' '/save talk.json' Enter
interrupted 'A question whose answer takes longer than somebody waits for it'
step '(5 messages)' '/load ta' Tab Enter
step '$' C-d

# A later chat: the history of prompts and the conversation are still there.
step '>' 'bn-chat builtin:echo' Enter
step '(5 messages)' Up Enter
step 'user: more' more Enter
step '$' C-d
