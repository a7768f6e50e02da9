# The linker's version script: each function belongs to version `node`, everything else is the library's own.
END {
    print node " {\n    global:"
    for (i = 1; i <= count; i++) if (kind[i] == "function") print "        " name[i] ";"
    print "    local: *;\n};"
}
