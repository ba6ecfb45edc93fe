#!/bin/sh
# Messages of errors begin in lower case and end without a period; errdetail and errhint are sentences.
set -eu
cd "$(dirname "$0")/../.."

bad=0
# report EXPRESSION SENTENCE
report() {
    if grep -rnE "$1" src --include='*.c' --include='*.h'; then
        echo "^ $2"
        bad=1
    fi
}

report '(elog\([A-Z]+, *"|errmsg(_internal)?\(")([A-Z][a-z]|.*\.")' \
    'a primary message begins in lower case and has no period'
report "(elog\([A-Z]+, *\"|errmsg(_internal)?\(\")[^\"]*(can't|couldn't|can not|could not be able)" \
    'no contractions: cannot, could not'
report 'err(detail|hint)\("([a-z]|[^"]*[^.!?"]"\))' \
    'DETAIL and HINT are sentences: a capital, a period'
exit $bad
