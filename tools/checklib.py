# SPDX-License-Identifier: Apache-2.0
"""What the source checks in this folder share: the list of files, C without its comments, and the self-test.

A check is a function check(tree) -> list of (path, line, why). main() runs it on a folder, prints its findings
as "path:line: why" and exits 1 if there are any. With --self-test it runs the check on small trees made of the
samples that the tool hands over: each good one must give nothing, each bad one exactly the findings it names.
"""
import os
import re
import subprocess
import sys
import tempfile


class Tree:
    """The files of a folder: those that git knows or would add, or all, where there is no git."""

    def __init__(self, root):
        self.root = root
        self.paths = self._list()

    def _list(self):
        try:
            out = subprocess.run(['git', '-C', self.root, 'ls-files', '-co', '--exclude-standard', '-z'],
                                 check=True, capture_output=True).stdout.decode()
            paths = [p for p in out.split('\0') if p]
        except (OSError, subprocess.CalledProcessError):
            paths = []
            for folder, folders, names in os.walk(self.root):
                folders[:] = [f for f in folders if not f.startswith(('.git', 'build'))]
                paths += [os.path.relpath(os.path.join(folder, n), self.root) for n in names]
        return sorted(p for p in set(paths) if os.path.isfile(os.path.join(self.root, p)))

    def text(self, path):
        with open(os.path.join(self.root, path), encoding='utf-8', errors='replace') as f:
            return f.read()

    def c_files(self):
        return [p for p in self.paths if p.endswith(('.c', '.h'))]


_C_TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def c_code(text):
    """The text with comments and the insides of strings blanked; lines keep their numbers."""

    def blank(match):
        token = match.group(0)
        if token[0] in '"\'':
            return token[0] + ' ' * (len(token) - 2) + token[0]
        return re.sub(r'[^\n]', ' ', token)

    return _C_TOKEN.sub(blank, text)


def _self_test(check, good, bad):
    failed = 0
    for wanted_findings, samples in ((False, good), (True, bad)):
        for name, files, *wanted in samples:
            with tempfile.TemporaryDirectory() as root:
                for path, text in files.items():
                    full = os.path.join(root, path)
                    os.makedirs(os.path.dirname(full), exist_ok=True)
                    with open(full, 'w', encoding='utf-8') as f:
                        f.write(text)
                found = check(Tree(root))
            where = sorted('%s:%d' % (p, n) for p, n, _ in found)
            expected = sorted(wanted[0]) if wanted_findings else []
            if where != expected:
                failed += 1
                print('self-test: %s: expected %s, found %s' % (name, expected or 'nothing', found))
    return failed


def main(check, good, bad):
    args = sys.argv[1:]
    if args == ['--self-test']:
        sys.exit(1 if _self_test(check, good, bad) else 0)
    root = args[0] if args else os.path.dirname(os.path.dirname(os.path.abspath(sys.argv[0])))
    found = check(Tree(root))
    for path, line, why in sorted(found):
        print('%s:%d: %s' % (path, line, why))
    sys.exit(1 if found else 0)
