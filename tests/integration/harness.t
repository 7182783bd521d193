#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The helpers of lib.sh can fail, and clean up.
. "$(dirname "$0")/lib.sh"

# Runs a small test of its own and gives its output and exit code.
inner() {
    local script=$TEST_TMP/inner.sh rc=0
    printf '. %q\n%s\n' "$LIB_ROOT/tests/integration/lib.sh" "$1" >"$script"
    bash "$script" 2>&1 || rc=$?
    echo "exit $rc"
}

like "$(inner 'is 1 1 same; done_testing')" '^exit 0' 'a passing test exits with 0'
like "$(inner 'is 1 2 other; done_testing')" '^exit 1' 'a failing test does not'
like "$(inner 'is 1 2 other; done_testing')" '^not ok 1 - other' 'is() tells different texts apart'
like "$(inner 'like abc "^b" word; done_testing')" '^not ok 1' 'like() needs a match'
like "$(inner 'ok right true; ok wrong false; done_testing')" '^not ok 2 - wrong' 'ok() needs success'
like "$(inner 'fails none any "" true; done_testing')" '^not ok 1' 'fails() needs a failure'
like "$(inner 'fails code 3 "" sh -c "exit 4"; done_testing')" '^not ok 1' 'fails() needs the exit code'
like "$(inner 'fails words any sorry sh -c "echo no; exit 1"; done_testing')" '^not ok 1' 'fails() needs the words'
like "$(inner 'fails words 1 "so.*y" sh -c "echo sorry; exit 1"; done_testing')" '^ok 1' 'fails() takes what it wants'
like "$(inner 'is 1 1 same')" '^exit 1' 'a test that ends without done_testing fails'
like "$(inner 'bail "cannot go on"; is 1 1 same; done_testing')" '^1\.\.1' 'bail() ends the test'
like "$(ASHLAR_SLOW=1 inner 'ok waits wait_for 0 false; done_testing')" '^not ok' 'wait_for() gives up'
is "$(echo '{"a": [1, {"b": "x"}]}' | json 'd["a"][1]["b"]')" x 'json() reaches into JSON'

background=$(inner 'sleep 60 & EXTRA_PIDS+=($!); echo "pid $!"; done_testing' | sed -n 's/^pid //p')
ok 'background processes end with the test' _is_gone "$background"
done_testing
