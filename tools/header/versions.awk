# The linker's version script: each function has version `node`, all other symbols are local.
END {
    print node " {\n    global:"
    for (i = 1; i <= count; i++) if (kind[i] == "function") print "        " name[i] ";"
    print "    local: *;\n};"
}
