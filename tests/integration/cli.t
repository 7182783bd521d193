#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The two programs' manners: what they say, with which exit code, and what they refuse.
. "$(dirname "$0")/lib.sh"

# ---- ashlard before it serves ----
server() { timeout 30 "$ASHLAR_BUILD/ashlard" "$@"; }
small=(--drives 2 --drive-size 256M)
fails 'ashlard without a folder is wrong usage' 2 '\-\-dir' server
fails 'ashlard with an unknown option is wrong usage' 2 'nonsense' server --dir "$NODE_DIR" --nonsense
fails 'a folder whose parent is missing is named, with what to do' 1 "$TEST_TMP/no/such.*No such file" \
    server --dir "$TEST_TMP/no/such" "${small[@]}"
echo file >"$TEST_TMP/file"
fails 'a file is no folder' 1 "$TEST_TMP/file" server --dir "$TEST_TMP/file" "${small[@]}"
mkdir "$TEST_TMP/lost"
echo '{"version": 1, "node": "11111111-1111-1111-1111-111111111111", "pool": "11111111-1111-1111-1111-111111111112"}' \
    >"$TEST_TMP/lost/node.json"
fails 'a lost coord.json is no first start' 1 'coord.json is gone.*' \
    server --dir "$TEST_TMP/lost" --nbd-port "$(free_port)" --nfs-port 0 "${small[@]}"
is "$(ls "$TEST_TMP/lost")" "$(printf 'ashlard.lock\nnode.json')" 'and nothing was made there'
fails 'a drive that does not exist is named' 1 '/nonexistent/disk' \
    server --dir "$TEST_TMP/d1" --nbd-port "$(free_port)" --nfs-port 0 --drive /nonexistent/disk

# ---- one node a folder, one a port ----
start_node "${small[@]}" || bail 'the node starts'
fails 'a second node on the folder is refused and says who has it' 1 "in use by another ashlard, process $NODE_PID" \
    server --dir "$NODE_DIR" --nbd-port "$(free_port)" --nfs-port 0
fails 'a busy port is refused with what to do' 1 "port $NODE_PORT.*(in use|nbd-port)" \
    server --dir "$TEST_TMP/d2" --nbd-port "$NODE_PORT" "${small[@]}"
ok 'and the first node still answers' ashlar status
"$ASHLAR_BUILD/ashlard" --dir "$TEST_TMP/d2" --nbd-port "$(free_port)" --nfs-port 0 --drives 1 --drive-size 128M 2>/dev/null &
EXTRA_PIDS+=($!)
ok 'on another port the start goes on' wait_for 10 ashlar -s "$TEST_TMP/d2/ashlar.sock" status
is "$(ashlar -s "$TEST_TMP/d2/ashlar.sock" drive add "$TEST_TMP/d2-extra" --json | json 'd["size_bytes"]')" \
    134217728 'and with the size that was given now'
is "$(stat -c %a "$ASHLAR_SOCK")" 660 'the control socket is closed to strangers'
is "$(stat -c %a "$NODE_DIR/nbd.sock")" 660 'and so is nbd.sock'

# ---- usage ----
fails 'a mistyped command gets a suggestion' 2 'ashlar volume list' ashlar volume lisst
fails 'a group without a command lists them' 2 'volume create' ashlar volume
fails 'a missing argument is named' 2 'NAME' ashlar volume show
fails 'an argument too much is named' 2 'extra' ashlar status extra
fails 'an unknown option is named' 2 'nonsense' ashlar status --nonsense
fails 'create needs a size' 2 '\-\-size' ashlar volume create v --protect none
fails 'create needs a protection' 2 '\-\-protect' ashlar volume create v --size 1G
fails 'a size that is none is named' 2 'many' ashlar volume create v --size many --protect none
fails 'an answer that cannot be written is no success' 1 'could not be written' \
    bash -c "\"$ASHLAR_BUILD/ashlar\" help >/dev/full"
fails 'no node at the socket: it says how to start one' 1 'ashlard --dir' ashlar -s "$TEST_TMP/nothing.sock" status
while read -r command; do
    # shellcheck disable=SC2086
    ok "$command --help" ashlar $command --help
    group=${command%% *}
    case $group in drive | volume) page=ashlar-$group.1 ;; export | unexport) page=ashlar-export.1 ;;
    fs | quota) page=ashlar-fs.1 ;; mount | umount) page=ashlar-mount.1 ;;
    scrub | repair) page=ashlar-scrub.1 ;; check | inspect) page=ashlar-$group.1 ;; *) page=ashlar.1 ;; esac
    text=$(MANWIDTH=300 man -l "$LIB_ROOT/man/$page" 2>/dev/null | col -b)
    missing=
    # shellcheck disable=SC2086
    for option in $(ashlar $command --help | sed -n 's/^  \(--[a-z-]*\).*/\1/p' | grep -vE '^--(socket|json|help|yes)$'); do
        grep -qe "$option" <<<"$text" || missing+=" $option"
    done
    is "$missing" '' "man/$page has all options of $command"
done < <(ashlar help | sed -nE 's/^  ([a-z]+( [a-z]+)?)( [A-Z[].*)?  +[a-z].*/\1/p' | grep -vE '^help\b')

# ---- volumes ----
ok 'a volume is created' ashlar volume create v1 --size 64M --protect mirror:2
fails 'again: it exists already, and what to do' 1 'exists' ashlar volume create v1 --size 64M --protect mirror:2
fails 'more copies than drives' 1 'ashlar drive add' ashlar volume create v3 --size 64M --protect mirror:3
fails 'a protection that is none' 1 'mirror:2' ashlar volume create v3 --size 64M --protect raid6
fails 'a name that is none' 1 '1 to 63' ashlar volume create ../etc --size 64M --protect none
is "$(ashlar volume list --json | json '[v["name"] for v in d]')" '["v1"]' 'nothing else was made'
is "$(ashlar volume show v1 --json | json '[d["size_bytes"], d["protection"], d["state"], d["healthy"]]')" \
    '[67108864, "mirror:2", "open", true]' 'volume show tells what it is'
fails 'a volume that is not there' 1 'no volume "nothing"' ashlar volume show nothing
is "$(ashlar volume show nothing --json 2>/dev/null | json 'd["error"]["code"]')" VOLUME_NOT_FOUND 'and in JSON, by its code'
ok 'grow' ashlar volume grow v1 96M
is "$(ashlar volume show v1 --json | json 'd["size_bytes"]')" 100663296 'it has grown'
fails 'it never shrinks' 1 'only grow' ashlar volume grow v1 32M

# ---- exports ----
fails 'export wants a protocol' 2 '\-\-nbd' ashlar export v1
fails 'an address that is none' 1 '10.0.0.0/8' ashlar export v1 --nbd --allow 300.1.1.1
like "$(ashlar export v1 --nbd)" "nbd://127.0.0.1:$NODE_PORT/v1" 'export prints where'
ok 'a client finds it over TCP' nbdinfo --size "$(uri v1 tcp)"
ok 'read-only takes effect' ashlar export v1 --nbd --read-only
like "$(nbdinfo "$(uri v1)")" 'is_read_only: true' 'a client sees that it is read-only'
ok 'an access list for others' ashlar export v1 --nbd --allow 192.0.2.0/24 2001:db8::/32
fails 'this address is not in it' any . nbdinfo --size "$(uri v1 tcp)"
is "$(ashlar volume show v1 --json | json 'd["exports"][0]["allow"]')" '["192.0.2.0/24", "2001:db8::/32"]' 'show tells it'
restart_node || bail 'the node starts again'
is "$(ashlar volume show v1 --json | json '[x["active"] for x in d["exports"]]')" '[true]' 'exported again after a restart'
fails 'with the same access list' any . nbdinfo --size "$(uri v1 tcp)"
ok 'unexport' ashlar unexport v1
fails 'twice' 1 'not exported' ashlar unexport v1

# ---- status, events, jobs ----
status=$(ashlar status --json)
is "$(json '[d["state"], d["health"], d["problems"]]' <<<"$status")" '["ready", "ok", []]' 'all is well'
is "$(json 'len(d["drives"])' <<<"$status")" 2 'status has the drives'
is "$(json '[v["name"] for v in d["volumes"]]' <<<"$status")" '["v1"]' 'and the volumes'
ok 'scrub waits and reports' ashlar scrub v1
is "$(ashlar volume show v1 --json | json 'd["scrub"]["result"]')" ok 'it ended well'
ok 'repair of all' ashlar repair --all
fails 'scrub of one or all, not both' 2 'one volume' ashlar scrub v1 --all
ok 'top gives one sample' ashlar top --once --interval 0.1
is "$(ashlar top --once --interval 0.1 --json | json 'sorted(d)')" '["cache", "drives", "file_systems", "seconds", "volumes"]' 'and in JSON'
like "$(ashlar events --json | json '[e["kind"] for e in d]')" 'scrub' 'events know of the scrub'

# ---- drives ----
first=$(ashlar drive list --json | json 'd[0]["path"]')
fails 'a drive that a mirror needs is not removed' 1 '(needs|drive add)' ashlar drive remove "$first" --yes
fails 'a drive that is none' 1 'no drive' ashlar drive remove /dev/nothing --yes
fails 'a good drive is not replaced by itself' 1 'good drive' ashlar drive replace "$first" --yes
ashlar volume create single --size 64M --protect none >/dev/null
fails 'a drive with the only copies of something is not replaced' 1 'last good copy' \
    ashlar drive replace "$first" "$TEST_TMP/newer" --yes
is "$(ls "$TEST_TMP/newer" 2>/dev/null)" '' 'and nothing was formatted for it'
is "$(ashlar drive list --json | json 'len(d)')" 2 'nor taken into the pool'
ok 'the volume goes away' ashlar volume delete single --yes
ok 'a file is added as a drive' ashlar drive add "$TEST_TMP/extra" --size 256M
fails 'it is not added twice' 1 'already' ashlar drive add "$TEST_TMP/extra"
head -c 1M /dev/zero >"$TEST_TMP/foreign"
mke2fs -q -F -t ext4 "$TEST_TMP/foreign" 96M
fails 'a file system is not overwritten' 1 'ext' ashlar drive add "$TEST_TMP/foreign"
ok 'now a drive can be removed' ashlar drive remove "$first" --yes
is "$(ashlar volume show v1 --json | json 'd["healthy"]')" true 'and the volume is healthy on the others'
is "$(ashlar drive list --json | json 'len(d)')" 2 'two drives are left'
fails 'a removed drive is not taken back as it is' 1 'removed' ashlar drive add "$first"

# ---- destruction asks ----
fails 'delete without a person or --yes does nothing' 1 '\-\-yes' ashlar volume delete v1
ok 'the volume is still there' ashlar volume show v1
ok 'delete --yes' ashlar volume delete v1 --yes
is "$(ashlar volume list --json)" '[]' 'it is gone'

# ---- the control socket by itself ----
raw() { "$PYTHON" - "$ASHLAR_SOCK" "$1" <<'PY'
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.settimeout(20)
s.sendall(sys.argv[2].encode().decode('unicode_escape').encode('latin-1'))
s.shutdown(socket.SHUT_WR)
out = b''
while True:
    part = s.recv(65536)
    if not part:
        break
    out += part
print(out.decode(), end='')
PY
}
like "$(raw '{"cmd": "version"}\n')" '^\{"ok":true' 'a request by hand'
is "$(raw '{"cmd": "version"}\n\n{"cmd": "version"}\n' | wc -l)" 2 'two requests on one connection'
like "$(raw 'garbage\n')" 'CONTROL_REQUEST' 'garbage gets an error'
like "$(raw '{"cmd": "nothing"}\n')" 'no command' 'so does an unknown command'
like "$(raw '{"cmd": "volume-show", "name": 5}\n')" 'must be' 'and an argument of the wrong type'
like "$(raw '{"cmd": "volume-show", "name": "a", "more": 5}\n')" 'no argument' 'and one too many'
like "$(raw "$(printf '[%.0s' {1..500})\n")" 'nested' 'and one that is too deep'
ok 'the node is still well' ashlar status
stop_node
is $? 0 'it stops in order'
done_testing
