# A C file that defines every function, so that a compiler's debug information has the whole interface. Not to be run.
END {
    print "#include \"bn_engine.h\""
    for (i = 1; i <= count; i++) {
        if (kind[i] != "function") continue
        s = text[i]
        sub(/[^)]*;$/, "", s)
        print s " { for (;;) { } }"
    }
}
