#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ashlar check: what a crash leaves is clean, every damage is named, nothing is ever written.
. "$(dirname "$0")/lib.sh"

sums() { (cd "$NODE_DIR" && find . -type f -exec sha256sum {} + | sort); }
check() { ashlar check "$NODE_DIR"; }
check_json() { ashlar check "$NODE_DIR" --json; }
# writer VOLUME: FUA and plain writes until it is killed
writer() { "$PYTHON" - "$(uri "$1")" <<'PY'
import random, sys
import nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
dice = random.Random(5)
print("ready", flush=True)
while True:
    offset = dice.randrange(0, h.get_size() // 4096 - 16) * 4096
    h.pwrite(dice.randbytes(4096 * dice.randrange(1, 16)), offset, nbd.CMD_FLAG_FUA * dice.randrange(2))
PY
}
# spoil DRIVE KIND VOLUME BLOCKS: garbage over the first blocks of that kind; prints their offset in the volume
spoil() {
    local place
    place=$(ashlar inspect "$NODE_DIR" --blocks "$1" --json |
        json "next('%d %d' % (b['offset'], b.get('volume_offset', 0)) for b in d if b['kind'] == '$2' and b['volume'] == '$3' and b['length'] >= 4096 * $4)")
    head -c $((4096 * $4)) /dev/urandom | dd of="$1" bs=4096 seek=$((${place% *} / 4096)) conv=notrunc status=none
    echo "${place#* }"
}

start_node --drives 3 --drive-size 256M || bail 'the node starts'
make_volume plain 32M none
make_volume twofold 32M mirror:2
for name in plain twofold; do
    head -c 32M /dev/urandom >"$TEST_TMP/image"
    ok "$name is filled" nbdcopy --flush "$TEST_TMP/image" "$(uri $name)"
done
mapfile -t drives < <(ashlar drive list --json | json '"\n".join(x["path"] for x in d)')
fails 'a running node is noticed' 2 'running' check
fails 'and one of its drives is in use' 2 'in use' ashlar inspect "${drives[0]}"

for name in plain twofold; do
    writer $name >"$TEST_TMP/writer.$name" 2>/dev/null &
    EXTRA_PIDS+=($!)
done
for name in plain twofold; do ok "clients write to $name" wait_for 10 grep -q ready "$TEST_TMP/writer.$name"; done
logged() { [ "$(ashlar volume show twofold --json | json 'd["log_bytes_used"]')" -gt 1000000 ]; }
ok 'the log fills' wait_for 20 logged
kill_node
for pid in "${EXTRA_PIDS[@]}"; do
    kill -KILL "$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
done
EXTRA_PIDS=()
before=$(sums)
ok 'check is clean after SIGKILL under load' check
report=$(check_json)
is "$(json 'd["clean"]' <<<"$report")" true 'the JSON says so'
is "$(json 'all(not x["closed_in_order"] for x in d["drives"])' <<<"$report")" true 'though nothing was closed in order'
is "$(json '[v["name"] for v in d["volumes"] if v["opened"] and v["checked_blocks"] > 0].__len__()' <<<"$report")" 2 'both volumes were read'
for view in --roots --log --groups --tree '--tree --head' --extents '--block 0:0'; do
    # shellcheck disable=SC2086
    ok "inspect shows $view" ashlar inspect "$NODE_DIR" --volume twofold $view
    # shellcheck disable=SC2086
    like "$(ashlar inspect "$NODE_DIR" --volume twofold $view --json | json 'd["volume"]')" '^twofold$' "inspect $view --json"
done
like "$(ashlar inspect "$NODE_DIR" --volume twofold --log --json | json 'len(d["log"]["batches"])')" '^[1-9]' 'the log is not empty'
ok 'inspect shows the pool' ashlar inspect "$NODE_DIR"
like "$(ashlar inspect "${drives[1]}")" 'superblocks' 'inspect shows a drive'
fails 'an unknown volume is named' 2 'nothing' ashlar inspect "$NODE_DIR" --volume nothing
is "$(sums)" "$before" 'replaying, checking and inspecting wrote nothing'
# Records of the log whose data is on a drive that is away: neither there nor gone.
for drive in "${drives[@]}"; do
    kinds=$(ashlar inspect "$NODE_DIR" --blocks "$drive" --json | json "sorted({b['kind'] for b in d if b['volume'] == 'plain'})")
    case $kinds in *root*) ;; *data*) break ;; esac
done
mv "$drive" "$TEST_TMP/away"
fails 'what only a missing drive has is named' 1 'plain: [0-9]+ bytes at byte [0-9]+ have no good copy' check
is "$(check_json | json '[v["used_bytes"] for v in d["volumes"] if v["name"] == "plain"]')" \
    "$(json '[v["used_bytes"] for v in d["volumes"] if v["name"] == "plain"]' <<<"$report")" 'and nothing is dropped for it'
mv "$TEST_TMP/away" "$drive"
ok 'with the drive back all is clean' check
ok 'the node starts from it' start_node
stop_node
ok 'check is clean after an orderly stop' check

# ---- Missing drive ----
mv "${drives[2]}" "$TEST_TMP/away"
fails 'a missing drive is named' 1 "${drives[2]}.*not there" check
fails 'and what is degraded' 1 'twofold: degraded' check
mv "$TEST_TMP/away" "${drives[2]}"
ok 'with the drive back all is clean' check

# ---- Damage ----
cp --sparse=always "${drives[1]}" "$TEST_TMP/saved"
at=$(spoil "${drives[1]}" data plain 3)
fails 'data without a second copy: its range is named' 1 "plain: 12288 bytes at byte $at have no good copy" check
is "$(check_json | json 'd["volumes"][[v["name"] for v in d["volumes"]].index("plain")]["damage"]')" \
    "[{\"offset\": $at, \"length\": 12288}]" 'in the JSON, too'
cp --sparse=always "$TEST_TMP/saved" "${drives[1]}"
ok 'undone, it is clean' check
spoil "${drives[1]}" data twofold 5 >/dev/null
fails 'a mirrored copy: drive and number are named' 1 "twofold: 5 block.*${drives[1]}" check
is "$(check_json | json 'sum(v["lost_blocks"] for v in d["volumes"])')" 0 'nothing of it is lost'
cp --sparse=always "$TEST_TMP/saved" "${drives[1]}"
for drive in "${drives[@]}"; do # one that has roots of it
    root=$(ashlar inspect "$NODE_DIR" --blocks "$drive" --json |
        json "max((b['offset'] + b['length'] for b in d if b['kind'] == 'root' and b['volume'] == 'twofold'), default='')")
    [ -z "$root" ] || break
done
newest=$(ashlar inspect "$NODE_DIR" --volume twofold --json | json "d['txg'] % 16")
offset=$("$PYTHON" - "$drive" "$NODE_DIR" "$ASHLAR_BUILD/ashlar" "$newest" <<'PY'
import json, subprocess, sys
drive, folder, ashlar, newest = sys.argv[1:]
def ask(*args):
    return json.loads(subprocess.run([ashlar, "inspect", folder, *args, "--json"], capture_output=True).stdout)
uuid = next(d["drive"] for d in ask()["drives"] if d["path"] == drive)
member = next(m for m in ask("--volume", "twofold", "--groups")["groups"][0]["members"] if m["drive"] == uuid)
sb = json.loads(subprocess.run([ashlar, "inspect", drive, "--json"], capture_output=True).stdout)["superblocks"][0]
print((sb["slab_offset"] + member["slab"] * sb["slab_bytes"]) // 4096 + int(newest))
PY
)
cp --sparse=always "$drive" "$TEST_TMP/saved.root"
head -c 4096 /dev/urandom | dd of="$drive" bs=4096 seek="$offset" conv=notrunc status=none
fails 'one copy of the newest root' 1 "twofold: a root on the drive $drive is wrong" check
cp --sparse=always "$TEST_TMP/saved.root" "$drive"
head -c 4096 /dev/zero | dd of="${drives[1]}" bs=4096 conv=notrunc status=none
fails 'a superblock' 1 "${drives[1]}: the superblock at its beginning" check
head -c 8192 /dev/urandom | dd of="${drives[1]}" bs=4096 seek=16 conv=notrunc status=none
fails 'a slab table' 1 "${drives[1]}: .*slab table" check
cp --sparse=always "$TEST_TMP/saved" "${drives[1]}"
cp "$NODE_DIR/coord.json" "$TEST_TMP/coord"
echo garbage >"$NODE_DIR/coord.json"
fails 'a damaged coordination file' 1 'coord.json' check
cp "$TEST_TMP/coord" "$NODE_DIR/coord.json"
ok 'everything undone, it is clean' check

# ---- Anything anywhere ----
# Garbage over single blocks all over a drive: found or not, nothing ever crashes, and 2 is never the answer.
no_crash() {
    local rc=0
    "$@" >/dev/null 2>&1 </dev/null || rc=$?
    [ $rc -le 1 ]
}
crashes=0
for seed in $(seq 12); do
    "$PYTHON" - "${drives[1]}" "$seed" <<'PY'
import random, sys
dice = random.Random(int(sys.argv[2]))
with open(sys.argv[1], "r+b") as f:
    for i in range(dice.choice([1, 8, 64])):
        at = dice.choice([0, 16, dice.randrange(0, 64), dice.randrange(256, 12000)])
        f.seek(at * 4096)
        f.write(dice.choice([bytes(4096), dice.randbytes(4096), b"\xff" * 4096]))
PY
    no_crash check || crashes=$((crashes + 1))
    for command in --roots --log --tree '--tree --head'; do
        # shellcheck disable=SC2086
        no_crash ashlar inspect "$NODE_DIR" --volume twofold $command || crashes=$((crashes + 1))
    done
    no_crash ashlar inspect "$NODE_DIR" --blocks "${drives[0]}" || crashes=$((crashes + 1))
    no_crash ashlar inspect "${drives[1]}" || crashes=$((crashes + 1))
    cp --sparse=always "$TEST_TMP/saved" "${drives[1]}"
done
is $crashes 0 'garbage anywhere crashes neither check nor inspect'
fails 'a folder without a pool' 2 'no pool' ashlar check "$TEST_TMP"
fails 'a file is no folder' 2 'not a folder' ashlar check "${drives[0]}"
done_testing
