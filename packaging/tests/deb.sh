#!/bin/sh
# deb.sh: builds the Debian packages and uses them as strangers do, in a minimal system of their own: a C program by
# pkg-config, bn-chat by a pipe. Purged, they leave nothing.
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
# The release that they were built on, as they need its libc.
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
# The libraries that the programs link, by whatever name the release has it.
needs=$(dpkg-deb -f target/deb/bn-engine-tools_*.deb Depends | tr ',' '\n' |
    sed -n 's/^ *\(lib\(cjson\|curl\|edit\)[^ ]*\).*/,\1/p' | tr -d '\n')
mmdebstrap --quiet --variant=minbase --include=gcc,libc6-dev,pkg-config"$needs" "$suite" $root
# Less the notes of dpkg and ldconfig.
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
for program in bn-convert bn-server; do
    [ ! -x $root/usr/bin/$program ] || inside $program --help > /dev/null
done
inside sh -c 'dpkg --purge $(dpkg-query -W -f "\${Package}\n" "*bn-engine*")' > target/deb/purge.log
files > target/deb/after
diff target/deb/before target/deb/after || { echo "the packages leave files"; exit 1; }
echo "installed, used from C and by a pipe, and purged without a trace"
