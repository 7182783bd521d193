# SPDX-License-Identifier: Apache-2.0
"""What the comparisons with other servers share: servers and their CPU time, loads, medians, verdicts, the command line.

A workload has a name, the name of its peer, and goals: which figures are to be reached, as ratios of ours to the
peer's. Its servers are measured in turn, several times over, so that drift hits both alike.
"""
import argparse
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(os.path.dirname(HERE), 'tests', 'demo'))
from node import free_port  # noqa: E402
GIB = 1 << 30
TICKS = os.sysconf('SC_CLK_TCK')


def fail(text):
    sys.exit('%s: %s' % (os.path.splitext(os.path.basename(sys.argv[0]))[0], text))


class Goal:
    """A figure that is to be reached: the median of a field of the results, ours to the peer's."""

    def __init__(self, name, field, bound, more):
        self.name, self.field, self.bound, self.more = name, field, bound, more

    def reached(self, ratio):
        return ratio >= self.bound if self.more else ratio <= self.bound


def goals(rate=None, p50=None, p99=None, cpu=None, time_s=None):
    """The goals for the bounds that are given."""
    table = (('rate', 'ops_per_s', rate, True), ('p50', 'p50_us', p50, False), ('p99', 'p99_us', p99, False),
             ('CPU', 'cpu_us', cpu, False), ('time', 'seconds', time_s, False))
    return [Goal(name, field, bound, more) for name, field, bound, more in table if bound is not None]


# ---- Servers ----

def allow_many_files():
    """Some servers keep few files open under a small limit, and pay for it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    for limit in (max(hard, 1 << 19), hard):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
            return
        except ValueError:  # not ours to raise
            continue


def last_lines(folder):
    """Of all logs there."""
    out = []
    for name in sorted(n for n in os.listdir(folder) if n.endswith('.log')):
        with open(os.path.join(folder, name), encoding='utf-8', errors='replace') as f:
            out += ['%s: %s' % (name, line) for line in f.readlines()[-10:]]
    return ''.join(out)


class Process:
    """A process that serves, its output in a log; ready() says when it does."""

    def __init__(self, folder, args, ready, limit_s=20):
        self.log = open(os.path.join(folder, os.path.basename(args[0]) + '.log'), 'ab')
        self.process = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                        preexec_fn=allow_many_files)
        limit = time.monotonic() + limit_s
        while not ready():
            if self.process.poll() is not None or time.monotonic() > limit:
                self.stop(0)
                fail('%s did not start:\n%s' % (args[0], last_lines(folder)))
            time.sleep(0.05)

    def cpu_s(self):
        """User and system time of all its threads, those that ended included."""
        with open('/proc/%d/stat' % self.process.pid, encoding='ascii') as f:
            fields = f.read().rpartition(')')[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def stop(self, patience_s=60):
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(timeout=patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


class Server:
    """One or several processes that serve together; `where` tells a load how to reach them."""

    running = []

    def __init__(self, where):
        self.where, self.processes = where, []
        Server.running.append(self)

    def run(self, folder, args, ready):
        self.processes.append(Process(folder, args, ready))
        return self.processes[-1]

    def cpu_s(self):
        return sum(p.cpu_s() for p in self.processes)

    def stop(self):
        """What was started last is stopped first."""
        while self.processes:
            self.processes.pop().stop()
        Server.running.remove(self)


class Node(Server):
    """An ashlard of its own; tell() gives it commands."""

    def __init__(self, args, folder, where, options):
        super().__init__(where)
        self.args, self.dir = args, os.path.join(folder, 'node')
        os.makedirs(self.dir)
        self.run(folder, [os.path.join(args.build, 'ashlard'), '--dir', self.dir] + options + args.ashlard_options,
                 lambda: self.asks('status'))

    def command(self, *words):
        return [os.path.join(self.args.build, 'ashlar'), '-s', os.path.join(self.dir, 'ashlar.sock')] + list(words)

    def asks(self, *words):
        return subprocess.run(self.command(*words), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, check=False).returncode == 0

    def tell(self, *words):
        done = subprocess.run(self.command(*words), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            fail('ashlar %s: %s' % (' '.join(words), done.stderr.strip()))


# ---- Measuring ----

def run_load(command, server):
    """One run of a load generator: its result, with the server's CPU for each operation in microseconds."""
    run = subprocess.Popen(command + ['--sync'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    first = run.stdout.readline()
    before = server.cpu_s()
    if first:
        run.stdin.write('\n')
        run.stdin.flush()
        run.stdout.readline()
    cpu = server.cpu_s() - before
    out, _ = run.communicate('\n' if first else None)
    if run.returncode != 0:
        fail('the load failed: %s\n%s' % (' '.join(command), out))
    result = json.loads(out.strip().split('\n')[-1])
    result['cpu_us'] = cpu * 1e6 / max(1, result['operations'])
    return result


def median(results, key):
    return statistics.median(r[key] for r in results)


def remove_large_files(folder):
    for where, _, names in os.walk(folder):
        for path in (os.path.join(where, name) for name in names):
            if not os.path.islink(path) and os.path.getsize(path) >= 1 << 20:
                os.remove(path)


def in_turn(args, folder, start, load, beside=None):
    """{'peer': …, 'ours': …}: lists of results. start(role, folder) makes a server, load(role, server, turn) measures
    it once; beside() is called once a turn. Stops all servers, whatever happens. Of what they leave only large files
    are removed at once: for minutes ext4 searches past inodes that were removed, at the next peer's expense."""
    servers, results = {}, {'peer': [], 'ours': []}
    try:
        for role in ('peer', 'ours'):
            own = os.path.join(folder, role)
            os.makedirs(own)
            servers[role] = start(role, own)
        for turn in range(args.turns):
            for role in ('peer', 'ours') if turn % 2 == 0 else ('ours', 'peer'):
                results[role].append(load(role, servers[role], turn))
            if beside:
                beside()
    finally:
        for server in reversed(list(Server.running)):
            server.stop()
        remove_large_files(folder)
    return results


def verdicts(workload, results):
    """[(what, ratio, bound, reached, more is better)…] of the figures that are to be reached."""
    out = []
    for goal in workload.goals:
        ratio = median(results['ours'], goal.field) / max(median(results['peer'], goal.field), 1e-9)
        out.append((goal.name, ratio, goal.bound, goal.reached(ratio), goal.more))
    return out


def cells(results):
    """Rate, median latency, CPU; of what has no latency of its own, the time."""
    cpu = '%8.2f us CPU' % median(results, 'cpu_us')
    if 'p50_us' not in results[0]:
        return '%9.0f/s %9.3f s  %s' % (median(results, 'ops_per_s'), median(results, 'seconds'), cpu)
    return '%9.0f/s %8.1f us %s' % (median(results, 'ops_per_s'), median(results, 'p50_us'), cpu)


def show(workload, results, judged):
    print('%-40s ashlard     %s' % (workload.name, cells(results['ours'])))
    print('%-40s %-11s %s' % ('', workload.peer, cells(results['peer'])))
    for name, ratio, bound, reached, more in judged:
        print('%-40s %s %-17s %.2fx, to reach %s %.2fx' % ('', 'ok  ' if reached else 'MISS', name, ratio,
                                                          '>=' if more else '<=', bound))
    sys.stdout.flush()


# ---- The command line ----

def temporary_folder(args):
    """A new one, removed when compare() ends."""
    if args.top is None:
        args.top = tempfile.mkdtemp(prefix='ashlar-bench.', dir=args.dir)
        # ext4 then spreads the folders in it over the drive, away from what earlier ones removed.
        subprocess.run(['chattr', '+T', args.top], stderr=subprocess.DEVNULL, check=False)
    return tempfile.mkdtemp(dir=args.top)


def parser(doc):
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--build', default=os.path.join(os.path.dirname(HERE), 'build'))
    p.add_argument('--dir', default=os.environ.get('TMPDIR', '/var/tmp'), help='on the drive to measure')
    p.add_argument('--seconds', type=int, default=5)
    p.add_argument('--turns', type=int, default=5)
    p.add_argument('--size', type=int, default=GIB, help='working set in bytes')
    p.add_argument('--only', default='', help='workloads whose name has this text')
    p.add_argument('--list', action='store_true')
    p.add_argument('--json', help='append one JSON line a workload to this file')
    p.add_argument('ashlard_options', nargs='*', help='options of ashlard, after --')
    return p


def compare(args, workloads, measure):
    """Measures the chosen ones and ends the process. measure(args, workload, folder) gives the results, the verdicts
    and what else the JSON is to have."""
    chosen = [w for w in workloads if args.only in w.name]
    if args.list:
        print('\n'.join(w.name for w in chosen))
        return
    args.top = None
    args.build, args.dir = os.path.abspath(args.build), os.path.abspath(args.dir)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are stopped
    misses = 0
    try:
        for workload in chosen:
            results, judged, more = measure(args, workload, temporary_folder(args))
            show(workload, results, judged)
            misses += sum(not reached for _, _, _, reached, _ in judged)
            if args.json:
                with open(args.json, 'a', encoding='utf-8') as f:
                    f.write(json.dumps({'workload': workload.name, 'peer': workload.peer, 'results': results,
                                        'judged': [j[:4] for j in judged], **more}) + '\n')
    finally:
        if args.top is not None:
            shutil.rmtree(args.top, ignore_errors=True)
    print('%d workloads, %d figures not reached' % (len(chosen), misses))
    sys.exit(1 if misses else 0)
