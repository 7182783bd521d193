# SPDX-License-Identifier: Apache-2.0
"""Files: a real tree of sources through NFS and through a mount, with the server killed on the way; then what people
do on a file system: compile, git, SQLite."""
import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'nfs'))
from content import MIB  # noqa: E402
from node import Failed, run, wait_until  # noqa: E402
from rpc import Rpc  # noqa: E402

SOURCES = '/usr/src/linux-source-6.1.tar.xz'  # Debian's package linux-source-6.1
SMALL = ('/usr/include', '/usr/share/perl5')  # for the small version in ./check


class Files:
    def __init__(self, demo, small):
        self.node, self.report, self.folder, self.build = demo.node, demo.report, demo.folder, demo.node.build
        self.small = small
        self.source = os.path.join(self.folder, 'sources')
        self.mount = os.path.join(self.folder, 'mnt')
        self.mounted = False
        self.names = 0

    # ---- The tree ----

    def make_source(self):
        self.report.step('Files: a real tree')
        os.mkdir(self.source)
        if self.small:
            for top in SMALL:
                if os.path.isdir(top):
                    shutil.copytree(top, self.source + top, symlinks=True, ignore_dangling_symlinks=True)
            # What such folders lack.
            os.link(self.first_file(), os.path.join(self.source, 'hard'))
            os.symlink('hard', os.path.join(self.source, 'soft'))
        else:
            run(['tar', '-C', self.source, '-xf', SOURCES], timeout=900)
        self.names = sum(len(folders) + len(files) for _, folders, files in os.walk(self.source))
        self.report.say('%d names, %d MiB' % (self.names, self.size_of(self.source) // MIB))
        if not self.small:
            self.report.holds(self.names >= 50000, 'at least 50,000 names')

    def first_file(self):
        for path, _, names in os.walk(self.source):
            for name in sorted(names):
                if not os.path.islink(os.path.join(path, name)):
                    return os.path.join(path, name)
        raise Failed('the tree has no file')

    @staticmethod
    def size_of(top):
        return sum(os.lstat(os.path.join(path, name)).st_size for path, _, names in os.walk(top) for name in names)

    # ---- Killing the server while a client works ----

    def inodes(self, name):
        return self.node.ask('fs', 'show', name)['inodes']

    def kill_in_the_middle(self, client, name, wanted):
        """SIGKILL when so many inodes are there, and a restart; the client must end well."""
        wait_until(lambda: client.poll() is not None or self.inodes(name) >= wanted, 600, 'files arrive')
        early = client.poll() is not None
        self.node.kill()
        at = self.node.start()
        self.report.holds(not early, 'ashlard was killed with SIGKILL in the middle, and answered again after %.1f s' % at)
        return client.wait(timeout=1800)

    # ---- NFS ----

    def nfs_url(self, path):
        return 'nfs://127.0.0.1%s?version=3&nfsport=%d&mountport=%d&uid=0&gid=0' % (
            path, self.node.nfs_port, self.node.nfs_port)

    def nfstree(self, what, path):
        return [os.path.join(self.build, 'tests', 'nfs', 'nfstree'), what, self.source, self.nfs_url(path)]

    def over_nfs(self):
        self.report.step('Files: over NFS, with SIGKILL')
        self.node.ashlar('fs', 'create', 'tree', '--protect', 'mirror:2')
        self.node.ashlar('export', 'tree', '--nfs', '--no-root-squash')
        self.report.holds('/tree' in Rpc(self.node.nfs_port).exports(), 'tree is exported, and shown to who asks')
        started = time.monotonic()
        with open(os.path.join(self.folder, 'nfs.log'), 'wb') as log:
            client = subprocess.Popen(self.nfstree('put', '/tree'), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            code = self.kill_in_the_middle(client, 'tree', self.names // 3)
        self.report.holds(code == 0, 'the client copied everything and noticed nothing (%.0f names/s)' % (
            self.names / (time.monotonic() - started)))
        done = subprocess.run(self.nfstree('compare', '/tree'), stdin=subprocess.DEVNULL, capture_output=True, check=False)
        self.report.holds(done.returncode == 0, 'names, modes, times, hard links and contents are the same over NFS: %s' % (
            (done.stderr or done.stdout).decode(errors='replace').strip()[-300:]))

    # ---- FUSE ----

    def mount_it(self):
        os.makedirs(self.mount, exist_ok=True)
        self.node.ashlar('mount', 'tree', self.mount)
        self.mounted = True

    def umount(self):
        if self.mounted:
            self.node.ashlar('umount', self.mount)
            self.mounted = False

    def over_fuse(self):
        self.report.step('Files: through a mount, with SIGKILL')
        self.mount_it()
        self.same_trees(self.mount, 'what NFS wrote is the same through the mount')
        target = os.path.join(self.mount, 'unpacked')
        os.mkdir(target)
        started = time.monotonic()
        reader = subprocess.Popen(['tar', '--format=posix', '-C', self.source, '-cf', '-', '.'], stdout=subprocess.PIPE)
        before = self.inodes('tree')
        writer = subprocess.Popen(['tar', '-C', target, '-xpf', '-'], stdin=reader.stdout)
        reader.stdout.close()
        code = self.kill_in_the_middle(writer, 'tree', before + self.names // 3)
        reader.wait()
        self.report.holds(code == 0, 'tar unpacked everything and noticed nothing (%.0f names/s)' % (
            self.names / (time.monotonic() - started)))
        self.same_trees(target, 'names, modes, times, hard links and contents are the same through the mount')
        started = time.monotonic()
        shutil.rmtree(target)
        self.report.say('rm -r of %d names: %.1f s' % (self.names, time.monotonic() - started))

    def same_trees(self, there, what):
        wrong = []
        links = {}
        for path, folders, names in os.walk(self.source):
            other = os.path.join(there, os.path.relpath(path, self.source))
            expected = set(folders + names)
            found = set(os.listdir(other)) - ({'unpacked', 'work'} if path == self.source else set())
            if expected != found:
                wrong.append('%s: %d names differ' % (other, len(expected ^ found)))
                continue
            for name in names + folders:
                wrong += self.differs(os.path.join(path, name), os.path.join(other, name), links)
            if len(wrong) > 20:
                break
        self.report.holds(not wrong, '%s%s' % (what, ': ' + '; '.join(wrong[:5]) if wrong else ''))

    @staticmethod
    def differs(here, there, links):
        a, b = os.lstat(here), os.lstat(there)
        if a.st_mode != b.st_mode or a.st_mtime_ns // 1000 != b.st_mtime_ns // 1000:
            return ['%s: mode or time' % there]
        if stat.S_ISLNK(a.st_mode):
            return [] if os.readlink(here) == os.readlink(there) else ['%s: target' % there]
        if not stat.S_ISREG(a.st_mode):
            return []
        if a.st_nlink != b.st_nlink or links.setdefault(a.st_ino, b.st_ino) != b.st_ino:
            return ['%s: hard links' % there]
        with open(here, 'rb') as x, open(there, 'rb') as y:
            while True:
                mine, theirs = x.read(1 << 20), y.read(1 << 20)
                if mine != theirs:
                    return ['%s: content' % there]
                if not mine:
                    return []

    # ---- What people do ----

    def work(self):
        self.report.step('Files: compiling, git and SQLite on the mount')
        folder = os.path.join(self.mount, 'work')
        os.mkdir(folder)
        self.git(folder)
        self.compile(os.path.join(folder, 'clone'))
        self.sqlite(os.path.join(folder, 'test.db'))
        shutil.rmtree(folder)

    def git(self, folder):
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        origin = os.path.join(self.folder, 'origin')
        shutil.copytree(os.path.join(root, 'src'), os.path.join(origin, 'src'))
        git = ['git', '-c', 'user.name=demo', '-c', 'user.email=demo@example.org', '-C', origin]
        for args in (['init', '-q'], ['add', '-A'], ['commit', '-qm', 'sources']):
            run(git + args)
        clone = os.path.join(folder, 'clone')
        run(['git', 'clone', '-q', 'file://' + origin, clone])
        done = subprocess.run(['git', '-C', clone, 'fsck', '--full', '--strict'], stdin=subprocess.DEVNULL,
                              capture_output=True, check=False)
        self.report.holds(done.returncode == 0, 'git clone, and git fsck is content')

    def compile(self, clone):
        """All of runtime/ and volume/, as many files at once as there are cores, into objects on the mount."""
        sources = [os.path.join('src', part, name) for part in ('runtime', 'volume')
                   for name in sorted(os.listdir(os.path.join(clone, 'src', part))) if name.endswith('.c')]
        if self.small:
            sources = sources[:8]
        command = ('printf "%%s\\n" %s | xargs -P2 -I{} sh -c \'gcc -std=gnu17 -O1 -D_GNU_SOURCE '
                   '-DASHLAR_VERSION=\\"0\\" -msse4.2 -mpclmul -Isrc -c {} -o {}.o\'' % ' '.join(sources))
        started = time.monotonic()
        done = subprocess.run(['sh', '-c', command], cwd=clone, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        built = all(os.path.getsize(os.path.join(clone, s + '.o')) > 0 for s in sources) if done.returncode == 0 else False
        self.report.holds(built, '%d C files were compiled there in %.1f s%s' % (
            len(sources), time.monotonic() - started, '' if built else ': ' + done.stderr.decode(errors='replace')[-300:]))

    def sqlite(self, path):
        rows = 300 if self.small else 3000
        numbers = random.Random(7)
        for mode in ('delete', 'wal'):
            db = sqlite3.connect(path, timeout=30)
            db.execute('pragma journal_mode=%s' % mode)
            db.execute('create table if not exists t (id integer primary key, mode text, body blob)')
            for i in range(0, rows, 10):
                with db:
                    db.executemany('insert into t (mode, body) values (?, ?)',
                                   [(mode, numbers.randbytes(200 + 13 * k)) for k in range(i, i + 10)])
            db.close()
        db = sqlite3.connect(path, timeout=30)
        fine = db.execute('pragma integrity_check').fetchone()[0]
        count = db.execute('select count(*) from t').fetchone()[0]
        db.close()
        self.report.holds(fine == 'ok' and count == 2 * rows, 'SQLite: %d rows in transactions, integrity_check: %s' % (
            count, fine))

    def end(self):
        self.umount()
        report = self.node.ask('fs', 'check', 'tree')
        self.report.holds(report['problems'] == 0, 'fs check: %d inodes, %d names, all fits together' % (
            report['inodes'], report['names']))

    def leave(self):
        """However it ended: no mount stays behind."""
        if self.mounted:
            subprocess.run(['fusermount3', '-uz', self.mount], stdin=subprocess.DEVNULL, capture_output=True, check=False)

    def run(self):
        self.make_source()
        self.over_nfs()
        if os.path.exists('/dev/fuse'):
            self.over_fuse()
            self.work()
        else:
            self.report.say('no /dev/fuse here: nothing was mounted')
        self.end()
