#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures ashlard beside other servers of files: over NFS beside nfs-ganesha, mounted beside bindfs; on the same drive.

As compare.py does for NBD. CPU is user and system time of all processes that serve: of a mount, the node and the
mount process. Needs root, runs in a network and with mounts of its own, and removes what it made. See README.md.
"""
import os
import random
import shutil
import subprocess
import tarfile
import time

import comparison
import file_servers
from comparison import goals

K = 1024
FILES = 10000
# The shares of the operations of SPECsfs2008's NFS version 3 load: 28 % are reads and writes. The sizes of these are
# ours ("--block mix"), and so is everything else: it is no result of that benchmark.
SFS_MIX = ('lookup=24,read=18,write=10,getattr=26,readlink=1,readdir=1,create=1,remove=1,fsstat=1,setattr=4,readdirplus=2,'
           'access=11')


class NfsWorkload:
    """A mixture for nfsload, on FILES small files (tree) or --size bytes of data, or on nothing that is there before."""

    peer = 'nfs-ganesha'

    def __init__(self, name, mix, depth=1, connections=1, tree=False, data=False, options=(), preload=False, **bounds):
        self.name, self.tree, self.data, self.preload = name, tree, data, preload
        self.options = ['--mix', mix, '--depth', str(depth), '--connections', str(connections)] + list(options)
        self.goals = goals(**bounds)

    def command(self, args, server, options):
        there = (['--files', str(FILES)] if self.tree else []) + (['--bytes', str(args.size)] if self.data else [])
        return [os.path.join(args.build, 'bench', 'nfsload')] + server.where + there + options

    def start(self, args, role, folder):
        server = file_servers.start_ashlard_nfs(args, folder) if role == 'ours' else file_servers.start_ganesha(folder)
        if self.tree or self.data:
            subprocess.run(self.command(args, server, ['--make']), check=True)
        return server

    def load(self, args, server, turn):
        options = self.options + ['--seconds', str(args.seconds), '--seed', str(turn + 1)]
        if self.preload:  # enough for the time; a run that has used them up ends
            options += ['--warmup', '0', '--preload', str(min(40000, 10000 * args.seconds))]
        os.sync()
        return comparison.run_load(self.command(args, server, options), server)


class MountWorkload:
    """Something that is done to a mounted folder. asked: the kernel keeps neither names nor attributes on either side,
    so that both servers are asked for each."""

    peer = 'bindfs'

    def __init__(self, name, asked=False, **bounds):
        self.name, self.asked, self.goals = name, asked, goals(**bounds)

    def start(self, args, role, folder):
        options = ['-o', 'attr_timeout=0,entry_timeout=0'] if self.asked else []
        if role == 'ours':
            server = file_servers.AshlarMount(args, folder, options)
        else:
            server = file_servers.BindfsMount(folder, options)
        self.make(args, server)
        return server

    def make(self, args, server):
        """Lays out what it works on."""


class OperationWorkload(MountWorkload):
    """One kind of operation, by fileload."""

    def __init__(self, name, op, threads=1, cold=False, **bounds):
        super().__init__(name + (' x%d' % threads if threads > 1 else ''), **bounds)
        self.op, self.threads, self.cold = op, threads, cold

    def command(self, args, server):
        there = {'stat': ['--files', str(FILES)], 'lookup': ['--files', str(2 * FILES)], 'read': ['--bytes', str(args.size)]}
        return [os.path.join(args.build, 'bench', 'fileload'), server.where] + there.get(self.op, [])

    def make(self, args, server):
        command = self.command(args, server)
        if len(command) > 2:
            subprocess.run(command + ['--make'], check=True)

    def load(self, args, server, turn):
        if self.cold:
            server.mount_again()
        options = ['--op', self.op, '--threads', str(self.threads), '--seconds', str(args.seconds), '--seed', str(turn + 1)]
        if self.op == 'unlink':  # enough for the time; a run that has used them up ends
            options += ['--preload', str(min(100000, 20000 * args.seconds) // self.threads)]
        os.sync()
        return comparison.run_load(self.command(args, server) + options, server)


class TreeWorkload(MountWorkload):
    """One command on many files; it is the time that counts."""

    def __init__(self, name, prepare, command, **bounds):
        super().__init__(name, **bounds)
        self.prepare, self.tree_command = prepare, command

    def load(self, args, server, turn):
        tree = os.path.join(server.where, 't%d' % turn)
        self.prepare(args, tree)
        os.sync()
        before, start = server.cpu_s(), time.monotonic()
        files = self.tree_command(args, tree)
        seconds, cpu = time.monotonic() - start, server.cpu_s() - before
        return {'operations': files, 'seconds': seconds, 'ops_per_s': files / seconds, 'cpu_us': cpu * 1e6 / files}


# ---- Trees: sources are made once, in --dir, and removed in the end ----

def quietly(*command):
    """git must not see anybody's settings."""
    environment = dict(os.environ, GIT_CONFIG_GLOBAL='/dev/null', GIT_CONFIG_SYSTEM='/dev/null')
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment)


def source(args, name, make):
    """The path of what make(path) makes there, once."""
    if args.sources is None:
        args.sources = comparison.temporary_folder(args)
    path = os.path.join(args.sources, name)
    if not os.path.exists(path):
        make(path)
    return path


def write_files(folder, count, per_folder):
    """Up to 8 KiB each, most of them small; the same ones each time."""
    dice = random.Random(1)
    for i in range(count):
        where = os.path.join(folder, 'd%03d' % (i // per_folder))
        os.makedirs(where, exist_ok=True)
        with open(os.path.join(where, 'file-%05d.txt' % i), 'wb') as f:
            f.write(dice.randbytes(int(8192 * dice.random() ** 2)).hex().encode()[:8192])


def make_tar(path):
    folder = path + '.files'
    write_files(folder, FILES, 100)
    with tarfile.open(path, 'w') as tar:
        tar.add(folder, '.')
    shutil.rmtree(folder)


def make_repository(path):
    write_files(path, 4000, 40)
    git = ['git', '-C', path, '-c', 'user.name=bench', '-c', 'user.email=bench@localhost', '-c', 'gc.auto=0']
    quietly('git', 'init', '-q', path)
    quietly(*git, 'add', '-A')
    quietly(*git, 'commit', '-q', '-m', 'files')
    quietly(*git, 'gc', '-q')


def unpack(args, tree):
    os.makedirs(tree, exist_ok=True)
    quietly('tar', '-C', tree, '-xf', source(args, 'files.tar', make_tar))
    return FILES


def clone(args, tree):
    quietly('git', 'clone', '-q', '--no-hardlinks', source(args, 'repository', make_repository), tree)
    return 4000


def remove(args, tree):
    quietly('rm', '-r', tree)
    return FILES


def sources_only(args, tree):
    """So that making them is not timed."""
    source(args, 'files.tar', make_tar)
    source(args, 'repository', make_repository)


# ---- The table ----

def nfs_workloads():
    fast = {'rate': 1.8, 'cpu': 0.35}
    write = {'depth': 32, 'data': True, 'rate': 2.0, 'cpu': 0.4}
    yield NfsWorkload('null RPC QD32', 'null=1', 32, **fast)
    yield NfsWorkload('getattr QD32', 'getattr=1', 32, tree=True, **fast)
    yield NfsWorkload('lookup QD32', 'lookup=1', 32, tree=True, **fast)
    yield NfsWorkload('readdirplus of 10,000 entries', 'readdirplus=1', tree=True, options=['--entries'], cpu=0.35)
    yield NfsWorkload('4K random read QD32, cached', 'read=1', 32, data=True, rate=1.8, cpu=0.4)
    yield NfsWorkload('4K random write QD32 unstable', 'write=1', **write)
    yield NfsWorkload('4K random write QD32 FILE_SYNC', 'write=1', options=['--stable', 'file'], **write)
    for block, verb, more in ((128, 'read', []), (512, 'write', ['--commit-every', '64'])):
        for streams in (1, 4):
            name = '%dK %s stream%s x%d' % (block, verb, ' with COMMIT' if more else '', streams)
            yield NfsWorkload(name, verb + '=1', 4, streams, data=True, rate=1.0, cpu=0.6,
                              options=['--sequential', '--block', str(block * K)] + more)
    # Of these, remove is the last, for the peer's sake: see comparison.in_turn().
    yield NfsWorkload('small file CREATE + WRITE 4K FILE_SYNC x8', 'smallfile=1', connections=8, rate=3.0, cpu=0.25,
                      options=['--stable', 'file'])
    yield NfsWorkload('SFS-like mix 28/72 FILE_SYNC x8', SFS_MIX, 4, 8, tree=True, data=True, rate=2.0, cpu=0.4, p99=1.0,
                      options=['--stable', 'file', '--block', 'mix'])
    # Durable when they are answered, unlike Ganesha's.
    yield NfsWorkload('create x8', 'create=1', connections=8, rate=1.0, cpu=0.5)
    yield NfsWorkload('mkdir x8', 'mkdir=1', connections=8, rate=1.0, cpu=0.5)
    yield NfsWorkload('remove x8', 'remove=1', connections=8, preload=True, rate=1.0, cpu=0.5)


def mount_workloads():
    for threads in (1, 4):
        yield OperationWorkload('mount: stat', 'stat', threads, rate=1.0)
        yield OperationWorkload('mount: stat, each one asked', 'stat', threads, asked=True, rate=1.0)
        yield OperationWorkload('mount: lookup, cold names', 'lookup', threads, cold=True, rate=1.0)
        for op in ('create', 'mkdir', 'rename'):
            yield OperationWorkload('mount: ' + op, op, threads, rate=1.0)
        yield OperationWorkload('mount: 4K random read, O_DIRECT', 'read', threads, cpu=1.0)
    yield TreeWorkload('mount: tar -x of 10,000 files', sources_only, unpack, time_s=1.0)
    yield TreeWorkload('mount: git clone of 4,000 files', sources_only, clone, time_s=1.0)
    # Last, for the peer's sake: see comparison.in_turn().
    for threads in (1, 4):
        yield OperationWorkload('mount: unlink', 'unlink', threads, rate=1.0)
    yield TreeWorkload('mount: rm -r of 10,000 files', unpack, remove, time_s=1.0)


def measure(args, workload, folder):
    results = comparison.in_turn(args, folder, lambda role, own: workload.start(args, role, own),
                                 lambda role, server, turn: workload.load(args, server, turn))
    return results, comparison.verdicts(workload, results), {}


def main():
    args = comparison.parser(__doc__).parse_args()
    args.sources = None
    if not args.list:
        file_servers.isolate()
    comparison.compare(args, list(nfs_workloads()) + list(mount_workloads()), measure)


if __name__ == '__main__':
    main()
