#!/bin/sh
# cjson.sh FOLDER: cJSON's source there, as Debian has it, by apt-get, which checks its signature.
set -eu
folder=$(realpath -m "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$folder"
chmod 755 "$work"
. /etc/os-release
keys=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb-src [signed-by=$keys] http://deb.debian.org/debian $VERSION_CODENAME main" > "$work/sources.list"
cd "$work"
for step in update "source cjson"; do
    # shellcheck disable=SC2086
    apt-get -qq -o APT::Sandbox::User=root -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=- \
        -o Dir::State::lists="$work/lists" $step > log 2>&1 || { cat log; exit 1; }
done
cp cjson-*/cJSON.c cjson-*/cJSON.h cjson-*/LICENSE "$folder/"
