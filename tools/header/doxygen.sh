#!/bin/sh
# doxygen.sh HEADER: prints the header for Doxygen: // comments become documentation, and the first one the file's.
sed -e 's,^\( *\)//\([^/!]\),\1///\2,' -e 's,^\( *\)//$,\1///,' -e '1s,^/\*\**,/** @file,' "$1"
