#!/bin/sh
# deb.sh: builds the Debian packages and uses them as strangers do, in a minimal system of their own: a C program by
# pkg-config, bn-chat by a pipe, bn-server by HTTP. Purged, they leave nothing.
# Needs debhelper, for the second part mmdebstrap and root. lintian is asked where it is installed.
set -eu
left_out() {
    echo "skipped: $1"
    exit 0
}
command -v dh > /dev/null || left_out "no debhelper"
"$MAKE" --no-print-directory deb
if command -v lintian > /dev/null; then
    lintian --allow-root --fail-on error target/deb/*.changes
    echo "lintian finds no error"
else
    echo "skipped: lintian is not installed"
fi

command -v mmdebstrap > /dev/null || left_out "using the packages, no mmdebstrap"
[ "$(id -u)" = 0 ] || left_out "using the packages needs root"
root=target/deb/root
trap 'rm -rf $root target/deb/before target/deb/after' EXIT
# Test on the release that the packages were built on, as they need its libc.
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
mmdebstrap --quiet --variant=minbase --include=gcc,libc6-dev,pkg-config,curl "$suite" $root
# Lists the files, without those of dpkg and ldconfig.
files() {
    (cd $root && find . -path ./var/lib/dpkg -prune -o -path ./var/log -prune -o -path ./var/cache/ldconfig -prune -o \
        -path ./tmp -prune -o -print | LC_ALL=C sort)
}
inside() {
    chroot $root "$@"
}

files > target/deb/before
cp target/deb/*.deb examples-c/hello.c $root/tmp
inside sh -c 'dpkg -i /tmp/*.deb' > target/deb/install.log
inside sh -ec 'cd /tmp
    cc -std=c11 hello.c -o hello $(pkg-config --cflags --libs bn_engine)
    cc -std=c11 hello.c -o hello-static $(pkg-config --cflags --libs bn_engine-static)
    ./hello && ./hello-static' > target/deb/hello.out
[ "$(grep -c '^Once upon a time.' target/deb/hello.out)" = 2 ] || { echo "hello tells no story"; exit 1; }
[ "$(printf '17+25=\n' | inside bn-chat 2> /dev/null)" = 42 ] || { echo "bn-chat does not add"; exit 1; }
inside bn-convert --help > /dev/null
# The container shares this machine's network, so the port is the same.
inside sh -ec 'bn-server --port 18097 2> /tmp/server.log & server=$!
    curl -s --retry 30 --retry-connrefused --fail -o /dev/null http://127.0.0.1:18097/health
    curl -sS http://127.0.0.1:18097/v1/completions -d "{\"prompt\": \"17+25=\", \"max_tokens\": 8}"
    kill $server; wait $server' > target/deb/server.out || { cat $root/tmp/server.log; echo "bn-server does not run"; exit 1; }
grep -q '"text":"42"' target/deb/server.out || { cat target/deb/server.out; echo "bn-server does not add"; exit 1; }
for file in lib/systemd/system/bn-server.service share/bash-completion/completions/bn-server \
    share/zsh/vendor-completions/_bn-server share/doc/bn-engine-tools/THIRD-PARTY.gz; do
    [ -s $root/usr/$file ] || { echo "there is no $file"; exit 1; }
done
grep -q '^ExecStart=/usr/bin/bn-server$' $root/usr/lib/systemd/system/bn-server.service
inside sh -c 'dpkg --purge $(dpkg-query -W -f "\${Package}\n" "*bn-engine*")' > target/deb/purge.log
files > target/deb/after
diff target/deb/before target/deb/after || { echo "the packages leave files"; exit 1; }
echo "installed, used from C and by a pipe, and purged without a trace"
