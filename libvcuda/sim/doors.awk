# Reads driver.h as the preprocessor leaves it and writes the simulated driver's doors: for each function NAME an exported
# entry that asks faults.c whether this call is to fail, and then calls sim_NAME. The entries are resolved when they are looked
# up (ifunc), so that those newer than the simulated version are really absent from dlsym.
# With -v renames=1: only the definitions that turn every NAME of the implementation into sim_NAME.

BEGIN { RS = ";"; if (!renames) print "#include \"driver.h\"\n#include \"faults.h\"\n" }

# The last word of each parameter is its name.
function names_of(params,    parts, n, i, words, list) {
    n = split(params, parts, ",")
    for (i = 1; i <= n; i++) {
        gsub(/[^A-Za-z0-9_]+/, " ", parts[i])
        sub(/ +$/, "", parts[i])
        sub(/^.* /, "", parts[i])
        list = list (i > 1 ? ", " : "") (parts[i] == "void" ? "" : parts[i])
    }
    return list
}

{
    gsub(/#[^\n]*/, "")
    gsub(/[ \t\n]+/, " ")
}

match($0, /^ ?CUresult cu[A-Z][A-Za-z0-9_]*\(/) {
    name = substr($0, RSTART, RLENGTH - 1)
    sub(/^ ?CUresult /, "", name)
    params = substr($0, RSTART + RLENGTH)
    sub(/\)[^)]*$/, "", params)
    if (renames) {
        print "#define " name " sim_" name
        next
    }
    print "CUresult sim_" name "(" params ");"
    print "static CUresult door_" name "(" params ")\n{"
    print "    static struct sim_door door = {\"" name "\", -1};"
    print "    CUresult result = sim_door_open(&door);"
    print "    if (!result)\n        result = sim_" name "(" names_of(params) ");"
    print "    sim_door_close(&door);\n    return result;\n}"
    print "static __attribute__((no_sanitize(\"address\", \"thread\", \"undefined\"))) __typeof__(" name ") *find_" name "(void)\n{"
    print "    return sim_is_hidden(\"" name "\") ? NULL : door_" name ";\n}"
    print "CUresult " name "(" params ") __attribute__((ifunc(\"find_" name "\")));\n"
    doors[++count] = name
}

END {
    if (renames)
        exit
    print "const struct sim_symbol sim_symbols[] = {"
    for (i = 1; i <= count; i++)
        print "    {\"" doors[i] "\", (void *)door_" doors[i] "},"
    print "};\nconst size_t sim_symbol_count = sizeof sim_symbols / sizeof *sim_symbols;"
}
