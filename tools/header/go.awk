# Parts of the Go package, from the header: the statistics (stats_fields.go) and an engine's options (options_fields.go).
#   awk -v part=stats_fields|options_fields -f tools/header/parse.awk -f tools/header/go.awk include/bn_engine.h

# memory_used_bytes as MemoryUsedBytes, kv_blocks_used as KVBlocksUsed, idle_ns as Idle
function camel(s, words, n, i, out) {
    sub(/_[mnu]s$/, "", s)
    n = split(s, words, "_")
    for (i = 1; i <= n; i++)
        out = out (words[i] ~ /^(kv|itl)$/ ? toupper(words[i]) : toupper(substr(words[i], 1, 1)) substr(words[i], 2))
    return out
}

function go_type(text, s) {
    if (s ~ /_ns$/) return text ~ /\[/ ? "[" extent(text) "]time.Duration" : "time.Duration"
    if (text ~ /^bn_latency|^struct bn_latency/) return "Latency"
    if (text ~ /^bn_lengths|^struct bn_lengths/) return "Lengths"
    if (text ~ /^double/) return "float64"
    return "uint64"
}

function extent(text) {
    sub(/.*\[/, "", text)
    sub(/\].*/, "", text)
    return text
}

function value(text, s, type) {
    type = go_type(text, s)
    if (type == "Latency" || type == "Lengths") return tolower(type) "(c." s ")"
    if (type ~ /^\[/) return "durations(c." s ")"
    return type == "uint64" && text ~ /^uint64_t / || type == "float64" ? "c." s : type "(c." s ")"
}

function prose(s) {
    gsub(/`/, "", s)
    sub(/ +$/, "", s)
    gsub(/\n/, "\n\t// ", s)
    return s
}

function stats(i, fields) {
    print "// Stats are an engine's counters, which start at 0 with the engine."
    print "type Stats struct {"
    for (i = 1; i <= count; i++) if (is_statistic(i))
        print (fields++ ? "\n" : "") "\t// " prose(doc[i]) "\n\t" camel(name[i]) " " go_type(text[i], name[i])
    print "}\n\nfunc statsOf(c *bn_stats) (s Stats) {"
    for (i = 1; i <= count; i++) if (is_statistic(i))
        print "\ts." camel(name[i]) " = " value(text[i], name[i])
    print "\treturn s\n}"
}

function is_statistic(i) {
    return kind[i] == "field" && owner[i] == "bn_stats" && name[i] != "struct_size"
}

# An engine's options, without what the package sets itself. Spans are for C, C++ and Rust.
function is_option(i) {
    return kind[i] == "field" && owner[i] == "bn_engine_config" && name[i] !~ /^struct_size$|^on_event|^on_span|_context$/
}

function option_name(s) {
    if (s == "model_path") return "Path"
    if (s == "memory_limit_bytes") return "MemoryLimit"
    if (s == "queue_token_capacity") return "QueueTokens"
    if (s == "kv_events_capacity") return "KVEvents"
    return camel(s)
}

function option_type(i) {
    if (text[i] ~ /^bn_model /) return "*Model"
    if (text[i] ~ /^bn_string /) return "string"
    if (text[i] ~ /_callback /) return "func(LogLevel, string)"
    if (name[i] ~ /_[mu]s$/) return "time.Duration"
    if (doc[i] ~ /`BN_[A-Z_]+_\*`/) return camel(name[i])
    return text[i] ~ /^uint64_t / ? "uint64" : "int"
}

# Where C's 0 is not the default, Go has a number below 0 for it.
function has_zero(i) {
    return option_type(i) !~ /^u/ && doc[i] ~ /default[ \n][0-9]/ && doc[i] ~ / 0: /
}

function option_prose(i, s, k) {
    s = doc[i]
    if (name[i] == "log") s = "Receives the log, on any goroutine, several at once. nil: no log."
    if (name[i] == "max_unread_bytes")
        s = "The most bytes of a stream's output that the goroutine of the engine has not taken. 0: 4 MiB."
    if (has_zero(i)) sub(/ 0: /, " Below 0: ", s)
    gsub(/BN_[A-Z_]+_\*/, camel(name[i]), s)
    gsub(/NULL/, "nil", s)
    for (k = 1; k <= count; k++) if (is_option(k)) gsub("`" name[k] "`", option_name(name[k]), s)
    s = prose(others(s))
    gsub(/\/\/ \n/, "//\n", s)
    return s
}

# `bn_stats.context_length` as Stats.ContextLength
function others(s, to, path) {
    to["bn_stats"] = "Stats"
    to["bn_model_info"] = "ModelInfo"
    to["bn_model_config"] = "ModelOptions"
    to["bn_request_params"] = "Request"
    while (match(s, /`bn_[a-z_]+\.[a-z_]+`/)) {
        split(substr(s, RSTART + 1, RLENGTH - 2), path, ".")
        s = substr(s, 1, RSTART - 1) to[path[1]] "." camel(path[2]) substr(s, RSTART + RLENGTH)
    }
    return s
}

function option_value(i, of, s) {
    of = option_type(i)
    s = "o." option_name(name[i])
    if (of == "string") return "memory.text(" s ")"
    if (of == "int") return "count(" s ")"
    if (of == "uint64") return s
    if (of != "time.Duration") return "uint32(" s ")"
    s = name[i] ~ /_us$/ ? "count(int(" s "/time.Microsecond))" : "milliseconds(" s ")"
    return text[i] ~ /^uint64_t / ? "uint64(" s ")" : s
}

function options(i, fields) {
    print "// Options are the options of NewEngine. A zero stands for the default."
    print "type Options struct {"
    for (i = 1; i <= count; i++) if (is_option(i))
        print (fields++ ? "\n" : "") "\t// " option_prose(i) "\n\t" option_name(name[i]) " " option_type(i)
    print "}\n\n// set changes all but the models and the log."
    print "func (o *Options) set(c *bn_engine_config, memory *arena) {"
    for (i = 1; i <= count; i++) if (is_option(i) && option_type(i) !~ /^[*f]/) {
        print "\tset(&c." name[i] ", " option_value(i) ")"
        if (has_zero(i)) print "\tif o." option_name(name[i]) " < 0 {\n\t\tc." name[i] " = 0\n\t}"
    }
    print "}"
}

END {
    print "// Code generated by tools/header/go.awk from bn_engine.h. DO NOT EDIT.\n"
    print "package bnengine\n\nimport \"time\"\n"
    if (part == "stats_fields") stats()
    if (part == "options_fields") options()
}
