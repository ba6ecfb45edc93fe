# Totals by section and maintainer, straight from a Debian package index: the
# number of packages and the sum of their installed sizes. Independent of the
# JSON that goes through the queue.
function finish() {
    if (seen) {
        key = section "\t" maintainer
        packages[key]++
        size[key] += installed
    }
    seen = 0; installed = 0; section = "(none)"; maintainer = "(none)"
}
BEGIN { finish() }
/^$/ { finish(); next }
/^Package: / { seen = 1 }
/^Section: / { section = substr($0, 10) }
/^Maintainer: / { maintainer = substr($0, 13) }
/^Installed-Size: / { installed = $2 }
END {
    finish()
    for (key in packages)
        printf "%s\t%d\t%.0f\n", key, packages[key], size[key]
}
