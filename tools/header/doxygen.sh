#!/bin/sh
# doxygen.sh HEADER: the header as Doxygen is to read it: // comments are documentation, and its first comment is the file's.
sed -e 's,^\( *\)//\([^/!]\),\1///\2,' -e 's,^\( *\)//$,\1///,' -e '1s,^/\*\**,/** @file,' "$1"
