#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The demonstration of ./run --once: one node keeps real data through kills, damage and loss of drives.

Every step prints what it shows, what it measured, and PASS or FAIL for each thing that must hold. The exit code
is 0 only if everything held. Nothing here knows the insides: it talks to ashlard, ashlar, and standard clients.
"""
import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from content import MIB, Content, compare, connect  # noqa: E402
from files import Files  # noqa: E402
from node import BLOCK, SLOW, Node, merge, run, total, wait_until  # noqa: E402

VOLUMES = {'plain': 'none', 'twofold': 'mirror:2', 'threefold': 'mirror:3'}
MIRRORED = ('twofold', 'threefold')
REAL_FILES = ('/usr/share/doc', '/usr/share', '/usr/lib', '/usr/bin')
SCRATCH = 64 * MIB
# Of the unprotected volume few runs are damaged, so that each lost range can be named and compared.
PLAIN_RUNS_MAX = 12
SEED = 20260101


class Report:
    def __init__(self):
        self.failed = []
        self.held = 0
        self.started = time.monotonic()

    def step(self, title):
        print('\n== %s' % title, flush=True)

    def say(self, text):
        print('   %s' % text, flush=True)

    def holds(self, condition, text):
        print('   %s  %s' % ('PASS' if condition else 'FAIL', text), flush=True)
        if condition:
            self.held += 1
        else:
            self.failed.append(text)
        return condition


class Demo:
    def __init__(self, args, folder):
        self.args = args
        self.folder = folder
        self.report = Report()
        self.node = Node(args.build, folder, args.node_options)
        self.image = os.path.join(folder, 'image.ext4')
        self.content = {}
        self.paths = []  # of the drives that the node made
        self.good_state = None  # what drive list says of a drive that is well
        self.copy_seconds = 60.0  # of the quickest copy
        self.damaged = []  # (drive path, offset, length, kind, volume)
        self.files = Files(self, args.image_mib < 1024)

    # ---- Helpers of the steps ----

    def same(self, names, when):
        for name in names:
            started = time.monotonic()
            lost, wrong = compare(self.node.uri(name), self.content[name])
            rate = self.content[name].size / MIB / (time.monotonic() - started)
            self.report.holds(not lost and not wrong, '%s reads back identical %s (%d MiB/s)%s' % (
                name, when, rate, self.what_differs(lost, wrong)))

    @staticmethod
    def what_differs(lost, wrong):
        text = ''
        if lost:
            text += '; EIO for %d KiB, first at %d' % (total(lost) >> 10, lost[0][0])
        if wrong:
            text += '; WRONG BYTES in %d KiB, first at %d' % (total(wrong) >> 10, wrong[0][0])
        return text

    def nbdcopy(self, name):
        return ['nbdcopy', '--flush', self.image, self.node.uri(name)]

    def copy_all(self, names):
        """Copies the image into each volume, one after the other."""
        for name in names:
            started = time.monotonic()
            run(self.nbdcopy(name))
            seconds = time.monotonic() - started
            self.copy_seconds = min(self.copy_seconds, seconds)
            self.report.say('%-9s (%s): copied at %d MiB/s' % (
                name, VOLUMES[name], self.content[name].image_len / MIB / seconds))

    def write_scratch(self, names, seed):
        for name in names:
            connection = connect(self.node.uri(name))
            self.content[name].write_scratch(connection, seed)
            connection.shutdown()

    def fsck(self, name):
        """e2fsck on what the volume holds, through nbdcopy."""
        back = os.path.join(self.folder, 'back.ext4')
        run(['nbdcopy', self.node.uri(name), back])
        os.truncate(back, self.content[name].image_len)
        done = subprocess.run(['e2fsck', '-fn', back], stdin=subprocess.DEVNULL, capture_output=True, check=False)
        self.report.holds(done.returncode == 0, '%s: e2fsck -fn is content' % name)
        os.unlink(back)

    def offline_check(self, when):
        code, out = self.node.offline('check', self.node.dir)
        self.report.holds(code == 0, 'ashlar check is clean %s' % when)
        if code != 0:
            self.report.say('exit %d: %s' % (code, out.strip()[-800:]))

    def stop(self):
        started = time.monotonic()
        code = self.node.stop()
        self.report.holds(code == 0, 'orderly stop in %.1f s' % (time.monotonic() - started))

    def drive_of(self, path):
        for drive in self.node.drives():
            if os.path.realpath(drive['path']) == os.path.realpath(path):
                return drive
        return None

    # ---- The steps, in their order ----

    def make_image(self):
        size = self.args.image_mib * MIB
        self.report.step('An ext4 image of %d MiB out of real files' % self.args.image_mib)
        staging = os.path.join(self.folder, 'staging')
        copied = stage_files(staging, size * 3 // 4)
        run(['mke2fs', '-q', '-F', '-t', 'ext4', '-E', 'root_owner=0:0', '-d', staging, self.image,
             '%dM' % self.args.image_mib])
        shutil.rmtree(staging)
        done = subprocess.run(['e2fsck', '-fn', self.image], capture_output=True, check=False)
        self.report.holds(done.returncode == 0, 'an image with %d MiB of files' % (copied >> 20))

    def start_node(self):
        self.report.step('A fresh node')
        seconds = self.node.start()
        self.report.say('ashlard made a pool of %d drives and answered after %.1f s' % (
            len(self.node.drives()), seconds))

    def store(self):
        self.report.step('Store: nbdcopy into three volumes')
        content = Content(self.image, SCRATCH)
        for name, protection in VOLUMES.items():
            self.content[name] = content.copy()
            self.node.create(name, content.size, protection)
        self.copy_all(VOLUMES)
        self.write_scratch(VOLUMES, SEED)
        self.same(VOLUMES, 'after the copy')

    def kill(self):
        self.report.step('Kill: SIGKILL in the middle of a second copy')
        # How long the second copy takes is not known: one that was too quick is begun again and killed sooner.
        for share in (0.6, 0.3, 0.15):
            copies = [subprocess.Popen(self.nbdcopy(name), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL) for name in VOLUMES]
            time.sleep(self.copy_seconds * share)
            if all(c.poll() is None for c in copies):
                break
            for c in copies:
                c.wait(timeout=300 * SLOW)
        under_way = [c.poll() is None for c in copies]
        self.node.kill()
        codes = [c.wait(timeout=60) for c in copies]
        self.report.holds(all(under_way) and all(codes), 'three copies were under way when it was killed')
        code, out = self.node.offline('check', self.node.dir)
        self.report.holds(code == 0, 'ashlar check is clean on what the kill left')
        if code != 0:
            self.report.say(out.strip()[-800:])
        seconds = self.node.start()
        self.report.holds(seconds < 5 * SLOW, 'it answered again after %.1f s' % seconds)
        self.same(VOLUMES, 'after the kill')
        for name in VOLUMES:
            self.fsck(name)

    def damage(self):
        budget = self.args.damage_mib * MIB
        self.report.step('Damage: %d MiB of garbage over allocated blocks of one drive' % self.args.damage_mib)
        self.stop()
        drive, chosen = self.choose_damage(budget)
        dice = random.Random(SEED)
        by_kind = {}
        with open(drive, 'r+b') as f:
            for entry in chosen:
                f.seek(entry['offset'])
                f.write(dice.randbytes(entry['length']))
                key = (entry['volume'], entry['kind'])
                by_kind[key] = by_kind.get(key, 0) + entry['length']
                self.damaged.append((drive, entry))
            f.flush()
            os.fsync(f.fileno())
        self.report.say('on %s: %s' % (os.path.basename(drive), ', '.join(
            '%s %s %d KiB' % (volume, kind, length >> 10) for (volume, kind), length in sorted(by_kind.items()))))
        kinds = {e['kind'] for _, e in self.damaged}
        self.report.holds({'data', 'tree', 'log'} <= kinds, 'data, tree and log blocks are among them')
        self.report.holds(sum(by_kind.values()) >= budget * 9 // 10, '%d MiB were overwritten' % (
            sum(by_kind.values()) >> 20))
        self.node.start()

    def choose_damage(self, budget):
        """The drive that has most kinds of blocks, and which of its blocks to damage."""
        best = None
        for drive in sorted(self.paths):
            blocks = self.node.blocks_of(drive)
            kinds = {(b['volume'], b['kind']) for b in blocks}
            score = (sum(('log' == k and v in MIRRORED) for v, k in kinds), ('plain', 'data') in kinds, len(kinds))
            if best is None or score > best[0]:
                best = (score, drive, blocks)
        _, drive, blocks = best
        chosen = []
        # Of the mirrored volumes all tree, log and root blocks, up to a part of the budget.
        for volume in VOLUMES:
            for kind in ('tree', 'log', 'root'):
                if volume == 'plain' and kind != 'tree':
                    continue  # its log and its roots have no second copy: losing them is losing the volume
                chosen += take((b for b in blocks if b['volume'] == volume and b['kind'] == kind), budget // 16)
        chosen += take_runs([b for b in blocks if b['volume'] == 'plain' and b['kind'] == 'data'],
                            budget // 8, PLAIN_RUNS_MAX)
        for left, volume in ((2, 'twofold'), (1, 'threefold')):
            room = (budget - sum(b['length'] for b in chosen)) // left
            chosen += take((b for b in blocks if b['volume'] == volume and b['kind'] == 'data'), room)
        return drive, sorted(chosen, key=lambda b: b['offset'])

    def read_damaged(self):
        self.report.step('Read what was damaged')
        self.same(MIRRORED, 'in spite of the damage')
        hit = merge((e['volume_offset'], e['length']) for _, e in self.damaged
                    if e['volume'] == 'plain' and e['kind'] == 'data')
        lost, wrong = compare(self.node.uri('plain'), self.content['plain'])
        self.report.holds(not wrong, 'plain never gives wrong bytes')
        self.report.holds(lost == hit, 'plain gives EIO for exactly the %d KiB in %d ranges that were hit%s' % (
            total(hit) >> 10, len(hit), '' if lost == hit else ': it gave EIO for %d KiB' % (total(lost) >> 10)))
        named = self.node.damage_of('plain')
        self.report.holds(named == hit, 'status names exactly these ranges%s' % (
            '' if named == hit else ': it names %d KiB in %d' % (total(named) >> 10, len(named))))

    def scrub(self):
        self.report.step('Scrub')
        for name in VOLUMES:
            started = time.monotonic()
            code = self.node.scrub(name)
            job = self.node.volume(name)['scrub']
            self.report.holds(code == (1 if job['lost_blocks'] else 0) and job['result'] == 'ok',
                              '%s: scrub ran to its end, and its exit code says whether blocks are lost' % name)
            self.report.say('%-9s: %d bad copies found, %d repaired, %d blocks lost, in %.1f s' % (
                name, job['bad_copies'], job['repaired_copies'], job['lost_blocks'], time.monotonic() - started))
            if name in MIRRORED:
                self.report.holds(0 < job['bad_copies'] == job['repaired_copies'] and job['lost_blocks'] == 0,
                                  '%s: damage was found, and all of it repaired' % name)
        run(self.nbdcopy('plain'))
        self.write_scratch(['plain'], SEED)
        self.same(['plain'], 'once the lost ranges were written anew')
        self.report.holds(not self.node.damage_of('plain'), 'status names no damage any more')
        self.stop()
        self.report.holds(self.garbage_left() == 0, 'no allocated block of the drive holds garbage any more')
        self.offline_check('after scrub')
        self.node.start()
        self.same(MIRRORED, 'after scrub')

    def garbage_left(self):
        """How many damaged blocks are still in use and still hold what the damage wrote."""
        drive = self.damaged[0][0]
        in_use = set()
        for b in self.node.blocks_of(drive):
            if b['kind'] in ('data', 'tree', 'root', 'log'):
                in_use.update(range(b['offset'], b['offset'] + b['length'], BLOCK))
        dice = random.Random(SEED)
        left = 0
        with open(drive, 'rb') as f:
            for _, entry in self.damaged:
                garbage = dice.randbytes(entry['length'])
                f.seek(entry['offset'])
                now = f.read(entry['length'])
                for i in range(0, entry['length'], BLOCK):
                    if entry['offset'] + i in in_use and now[i:i + BLOCK] == garbage[i:i + BLOCK]:
                        left += 1
        return left

    def lose_drives(self, names, count, seed):
        """Takes drives away under the running server, goes on, replaces and repairs them, and verifies."""
        paths = [d['path'] for d in self.node.drives() if d['state'] == self.good_state][1:1 + count]
        for path in paths:
            os.truncate(path, 0)
            self.report.say('%s was truncated under the running server' % os.path.basename(path))
            self.same(names, 'without it')
            self.write_scratch(names, seed)
            self.copy_all(names)
            self.same(names, 'with what was written without it')
        for path in paths:
            drive = wait_until(lambda p=path: self.failed_drive(p), 30, 'drive list shows %s as failed' % path)
            self.report.say('drive list says of %s: %s' % (os.path.basename(path), drive['state']))
        for path in paths:
            os.unlink(path)
            self.node.ashlar('drive', 'replace', path, path + '.new', '--yes')
        started = time.monotonic()
        for name in names:
            self.node.ashlar('repair', name, timeout=600)
        self.report.say('replaced and repaired in %.1f s' % (time.monotonic() - started))
        for name in names:
            self.report.holds(self.node.volume(name)['healthy'], '%s is healthy again' % name)
        self.same(names, 'after the repair')

    def failed_drive(self, path):
        drive = self.drive_of(path)
        return drive if drive and drive['state'] != self.good_state else None

    def lose_one(self):
        self.report.step('Lose a drive under mirror:2 and mirror:3')
        self.node.ashlar('volume', 'delete', 'plain', '--yes')
        self.report.say('plain, which promises nothing here, was deleted')
        self.lose_drives(MIRRORED, 1, SEED + 1)

    def lose_two(self):
        self.report.step('Lose two drives at once under mirror:3')
        self.node.ashlar('volume', 'delete', 'twofold', '--yes')
        self.report.say('twofold, which promises to survive one, was deleted')
        self.lose_drives(['threefold'], 2, SEED + 2)

    def trim(self):
        self.report.step('TRIM gives space back')
        name, half = 'threefold', self.content['threefold'].image_len // 2 // MIB * MIB
        before = self.node.volume(name)['used_bytes']
        connection = connect(self.node.uri(name))
        for offset in range(0, half, 32 * MIB):
            connection.trim(min(32 * MIB, half - offset), offset)
        connection.flush()
        connection.shutdown()
        after = wait_until(lambda: self.used_below(name, before - half * 8 // 10 // 2), 60, 'less space is used')
        self.report.say('%d MiB trimmed: %s used %d MiB before, %d MiB after' % (
            half >> 20, name, before >> 20, after >> 20))
        self.content[name] = self.content[name].trimmed(0, half)
        self.same([name], 'with zeroes where it was trimmed')

    def used_below(self, name, limit):
        used = self.node.volume(name)['used_bytes']
        return used if used <= limit else None

    def keep_files(self):
        self.node.ashlar('volume', 'delete', 'threefold', '--yes')
        self.files.run()

    def end(self):
        self.report.step('Stop')
        self.stop()
        self.offline_check('at the end')

    def run(self):
        self.make_image()
        self.start_node()
        self.paths = [d['path'] for d in self.node.drives()]
        self.good_state = self.node.drives()[0]['state']
        for step in (self.store, self.kill, self.damage, self.read_damaged, self.scrub, self.lose_one,
                     self.lose_two, self.trim, self.keep_files, self.end):
            step()


def stage_files(folder, wanted):
    """Copies real files until their sizes reach about what is wanted; the sum."""
    copied = 0
    seen = set()
    for top in REAL_FILES:
        for path, folders, names in os.walk(top):
            folders.sort()
            if os.path.realpath(path) in seen:
                folders[:] = []
                continue
            seen.add(os.path.realpath(path))
            for name in sorted(names):
                source = os.path.join(path, name)
                if copied >= wanted:
                    return copied
                if not os.path.isfile(source) or os.path.islink(source) or os.path.getsize(source) > 64 * MIB:
                    continue
                target = folder + source
                os.makedirs(os.path.dirname(target), exist_ok=True)
                try:
                    shutil.copy2(source, target)
                except OSError:
                    continue
                # A small file takes a block and an inode as well.
                copied += (os.path.getsize(source) + 2 * BLOCK - 1) // BLOCK * BLOCK
    return copied


def take(blocks, budget):
    """Entries, the last one cut, up to the budget in bytes."""
    taken = []
    for block in blocks:
        length = min(block['length'], budget) // BLOCK * BLOCK
        if length == 0:
            break
        taken.append(dict(block, length=length))
        budget -= length
    return taken


def take_runs(blocks, budget, runs_max):
    """Like take(), but so that what is hit in the volume is at most runs_max ranges."""
    taken = []
    for block in sorted(blocks, key=lambda b: -b['length']):
        more = take([block], budget - sum(b['length'] for b in taken))
        if not more:
            break
        if len(merge((b['volume_offset'], b['length']) for b in taken + more)) > runs_max:
            continue
        taken += more
    return taken


def check_space(folder, image_mib):
    """The copies of three volumes, once more while they are overwritten, the image and one copy read back."""
    needed = (image_mib * 15 + 2048) * MIB
    available = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    if available < needed:
        sys.exit('the demonstration needs %d MiB in %s, and there are %d; set TMPDIR or take --image-mib' % (
            needed >> 20, folder, available >> 20))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--build', required=True)
    parser.add_argument('--image-mib', type=int, default=1024)
    parser.add_argument('--damage-mib', type=int, default=64)
    parser.add_argument('--keep', action='store_true', help='keep the temporary folder')
    parser.add_argument('node_options', nargs='*', help='options of ashlard, after --')
    args = parser.parse_args()
    folder = tempfile.mkdtemp(prefix='ashlar-demo.', dir=os.environ.get('TMPDIR', '/var/tmp'))
    check_space(folder, args.image_mib)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the node and the folder go, too
    demo = Demo(args, folder)
    report = demo.report
    try:
        demo.run()
    except Exception as error:  # whatever it was, the demonstration did not hold
        report.holds(False, 'the demonstration could not go on: %s: %s' % (type(error).__name__, error))
        report.say('the end of the log:\n' + demo.node.log_tail())
    finally:
        demo.files.leave()
        demo.node.kill()
        if args.keep:
            print('   kept: %s' % folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print('\n%d held, %d failed, in %d s' % (report.held, len(report.failed), time.monotonic() - report.started))
    for text in report.failed:
        print('FAILED: %s' % text)
    sys.exit(1 if report.failed else 0)


if __name__ == '__main__':
    main()
