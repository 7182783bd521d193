#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures ashlard beside the NBD servers that one would otherwise take: same machine, same run, same durability.

For each workload the server and its peers are measured in turn, several times over, and the medians compared:
rate, median latency, and the server's CPU (user and system) for each operation. On a machine with few cores the
ratios say more than the rates, and CPU more than both. See README.md.
"""
import argparse
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
GIB = 1 << 30
TICKS = os.sysconf('SC_CLK_TCK')


class Workload:
    """What is sent, which peer it is compared with, and what is to be reached (ratios of ours to the peer's)."""

    def __init__(self, name, peer, block, depth, read, ours='drive', protect='none', connections=1, sequential=False,
                 fua=False, rate=None, p50=None, cpu=None, bare=None):
        self.name, self.peer, self.ours, self.protect = name, peer, ours, protect
        self.block, self.depth, self.read, self.connections = block, depth, read, connections
        self.sequential, self.fua = sequential, fua
        self.rate, self.p50, self.cpu, self.bare = rate, p50, cpu, bare

    def options(self, seconds, seed):
        text = ['--block', str(self.block), '--depth', str(self.depth), '--read', str(self.read), '--connections',
                str(self.connections), '--seconds', str(seconds), '--seed', str(seed), '--sync']
        return text + (['--sequential'] if self.sequential else []) + (['--fua'] if self.fua else [])


def workloads():
    k = 1024
    table = [
        Workload('4K random read QD32, cached', 'nbdkit-file', 4 * k, 32, 100, ours='cache', rate=1.0, cpu=0.9),
        Workload('4K random read QD32', 'qemu-none', 4 * k, 32, 100, rate=1.2, cpu=0.8, bare=0.7),
        Workload('4K random read QD1', 'qemu-none', 4 * k, 1, 100, p50=0.95, cpu=0.8),
        Workload('4K random write QD32', 'qemu-none', 4 * k, 32, 0, rate=1.2, cpu=0.9),
        Workload('4K random write QD1 FUA', 'qemu-none', 4 * k, 1, 0, fua=True, p50=1.0, cpu=0.8),
        Workload('4K random write QD32 FUA', 'qemu-none', 4 * k, 32, 0, fua=True, rate=1.4, cpu=0.7),
        Workload('8K 70/30 random QD32', 'qemu-none', 8 * k, 32, 70, rate=1.2, cpu=0.9),
    ]
    for block, connections, rate in ((32, 1, None), (512, 1, 1.0), (128, 4, 1.0), (512, 4, 1.0)):
        for verb, read in (('read', 100), ('write', 0)):
            name = '%dK sequential %s QD8%s' % (block, verb, ' x%d' % connections if connections > 1 else '')
            table.append(Workload(name, 'qemu-none', block * k, 8, read, connections=connections, sequential=True,
                                  rate=rate, cpu=0.7))
    mirrored = [w for w in table if w.read < 100]
    for w in mirrored:
        table.append(Workload(w.name + ', mirror:2', w.peer, w.block, w.depth, w.read, protect='mirror:2',
                              connections=w.connections, sequential=w.sequential, fua=w.fua, cpu=1.4))
    return table


# ---- Servers ----

def free_port():
    """Below the range of outgoing connections, so that none of those has it when a stopped node comes back."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(('127.0.0.1', port))
                return port
            except OSError:
                continue


class Server:
    """A server process with one volume of 1 GiB of data; uri and pid."""

    def __init__(self, folder, args, ready, uri):
        self.uri = uri
        self.log = open(os.path.join(folder, 'log'), 'ab')
        self.process = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        limit = time.monotonic() + 20
        while not ready():
            if self.process.poll() is not None or time.monotonic() > limit:
                self.process.kill()
                sys.exit('compare: %s did not start; see %s' % (args[0], self.log.name))
            time.sleep(0.05)

    def cpu_s(self):
        with open('/proc/%d/stat' % self.process.pid, encoding='ascii') as f:
            fields = f.read().rpartition(')')[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


def make_image(folder, size):
    """Written, not sparse: an unwritten extent is another thing to read and to write."""
    path = os.path.join(folder, 'image')
    subprocess.run(['dd', 'if=/dev/urandom', 'of=' + path, 'bs=1M', 'count=%d' % (size >> 20), 'conv=fsync',
                    'status=none'], check=True)
    return path


def start_nbdkit_file(args, folder, workload):
    sock, image = os.path.join(folder, 'sock'), make_image(folder, args.size)
    return Server(folder, ['nbdkit', '-f', '-U', sock, 'file', image], lambda: os.path.exists(sock),
                  'nbd+unix:///?socket=' + sock)


def start_qemu_none(args, folder, workload):
    sock, image = os.path.join(folder, 'sock'), make_image(folder, args.size)
    return Server(folder, ['qemu-nbd', '-f', 'raw', '--cache=none', '--aio=io_uring', '--discard=unmap', '-t', '-e', '16',
                           '-k', sock, image], lambda: os.path.exists(sock), 'nbd+unix:///?socket=' + sock)


def start_ashlard(args, folder, workload):
    node, ashlar = os.path.join(folder, 'node'), os.path.join(args.build, 'ashlar')
    os.makedirs(node)
    control = [ashlar, '-s', os.path.join(node, 'ashlar.sock')]

    def tell(*words):
        return subprocess.run(control + list(words), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, check=False).returncode == 0

    memory = '256M' if workload.ours == 'drive' else '4G'
    drives = '2' if workload.protect != 'none' else '1'
    server = Server(folder, [os.path.join(args.build, 'ashlard'), '--dir', node, '--nbd-port', str(free_port()), '--nfs-port', '0',
                             '--memory', memory, '--drives', drives, '--drive-size', '16G'] + args.ashlard_options,
                    lambda: tell('status'), 'nbd+unix:///v?socket=%s/nbd.sock' % node)
    if not tell('volume', 'create', 'v', '--size', str(args.size), '--protect', workload.protect) or \
            not tell('export', 'v', '--nbd'):
        server.stop()
        sys.exit('compare: the volume could not be made')
    load(args, server.uri, ['--fill', '--block', '1048576', '--depth', '8', '--sync'], server)
    return server


STARTERS = {'nbdkit-file': start_nbdkit_file, 'qemu-none': start_qemu_none, 'ashlard': start_ashlard}


# ---- Measuring ----

def load(args, uri, options, server):
    """One run of nbdload; its result with the server's CPU for each operation, in microseconds."""
    run = subprocess.Popen([os.path.join(args.build, 'bench', 'nbdload'), uri, '--span', str(args.size)] + options,
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    run.stdout.readline()
    before = server.cpu_s()
    run.stdin.write('\n')
    run.stdin.flush()
    run.stdout.readline()
    cpu = server.cpu_s() - before
    out, _ = run.communicate('\n')
    if run.returncode != 0:
        sys.exit('compare: the load failed: %s' % out)
    result = json.loads(out.strip().split('\n')[-1])
    result['cpu_us'] = cpu * 1e6 / max(1, result['operations'])
    return result


def bare_drive(args, folder, workload):
    """What the drive gives without any server: fio on the peer's file."""
    image = os.path.join(folder, 'image')
    out = subprocess.run(['fio', '--name=bare', '--filename=' + image, '--ioengine=io_uring', '--direct=1',
                          '--rw=randread', '--bs=%d' % workload.block, '--iodepth=%d' % workload.depth,
                          '--runtime=%d' % args.seconds, '--time_based', '--output-format=json'],
                         check=True, capture_output=True, text=True).stdout
    return json.loads(out)['jobs'][0]['read']['iops']


def median(results, key):
    return statistics.median(r[key] for r in results)


def measure(args, workload, folder):
    """{'peer': …, 'ours': …, 'bare': …}: lists of results, taken in turn so that drift hits all alike."""
    servers, results, bare = {}, {'peer': [], 'ours': []}, []
    try:
        for role, name in (('peer', workload.peer), ('ours', 'ashlard')):
            own = os.path.join(folder, role)
            os.makedirs(own)
            servers[role] = STARTERS[name](args, own, workload)
        for turn in range(args.turns):
            for role in ('peer', 'ours') if turn % 2 == 0 else ('ours', 'peer'):
                server = servers[role]
                results[role].append(load(args, server.uri, workload.options(args.seconds, turn + 1), server))
            if workload.bare:
                bare.append(bare_drive(args, os.path.join(folder, 'peer'), workload))
    finally:
        for server in servers.values():
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return results, bare


def verdicts(workload, results, bare):
    """[(what, ratio, bound, reached)…] of the figures that are to be reached."""
    out = []
    for key, field, bound, more in (('rate', 'ops_per_s', workload.rate, True), ('p50', 'p50_us', workload.p50, False),
                                    ('CPU', 'cpu_us', workload.cpu, False)):
        ratio = median(results['ours'], field) / max(median(results['peer'], field), 1e-9)
        if bound is not None:
            out.append((key, ratio, bound, ratio >= bound if more else ratio <= bound))
    if workload.bare:
        ratio = median(results['ours'], 'ops_per_s') / statistics.median(bare)
        out.append(('of the bare drive', ratio, workload.bare, ratio >= workload.bare))
    return out


def show(workload, results, judged):
    def cells(role):
        return '%9.0f/s %8.1f us %7.2f us CPU' % (median(results[role], 'ops_per_s'), median(results[role], 'p50_us'),
                                                  median(results[role], 'cpu_us'))
    print('%-40s ashlard     %s' % (workload.name, cells('ours')))
    print('%-40s %-11s %s' % ('', workload.peer, cells('peer')))
    for key, ratio, bound, reached in judged:
        sign = '<=' if key in ('CPU', 'p50') else '>='
        print('%-40s %s %-17s %.2fx, to reach %s %.2fx' % ('', 'ok  ' if reached else 'MISS', key, ratio, sign, bound))
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--build', default=os.path.join(os.path.dirname(HERE), 'build'))
    parser.add_argument('--dir', default=os.environ.get('TMPDIR', '/var/tmp'), help='on the drive to measure')
    parser.add_argument('--seconds', type=int, default=5)
    parser.add_argument('--turns', type=int, default=5)
    parser.add_argument('--size', type=int, default=GIB, help='working set in bytes')
    parser.add_argument('--only', default='', help='workloads whose name has this text')
    parser.add_argument('--list', action='store_true')
    parser.add_argument('--json', help='append one JSON line a workload to this file')
    parser.add_argument('ashlard_options', nargs='*', help='options of ashlard, after --')
    args = parser.parse_args()
    chosen = [w for w in workloads() if args.only in w.name]
    if args.list:
        print('\n'.join(w.name for w in chosen))
        return
    misses = 0
    for workload in chosen:
        folder = tempfile.mkdtemp(prefix='ashlar-bench.', dir=args.dir)
        results, bare = measure(args, workload, folder)
        judged = verdicts(workload, results, bare)
        show(workload, results, judged)
        misses += sum(not reached for _, _, _, reached in judged)
        if args.json:
            with open(args.json, 'a', encoding='utf-8') as f:
                f.write(json.dumps({'workload': workload.name, 'peer': workload.peer, 'results': results, 'bare': bare,
                                    'judged': judged}) + '\n')
    print('%d workloads, %d figures not reached' % (len(chosen), misses))
    sys.exit(1 if misses else 0)


if __name__ == '__main__':
    main()
