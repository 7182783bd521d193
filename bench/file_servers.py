# SPDX-License-Identifier: Apache-2.0
"""The servers of files that compare_files.py compares: ashlard, nfs-ganesha and bindfs, and a place for them to run in.

Everything runs in a network and with mounts of its own (isolate()): no port, no rpcbind and no mount of this machine
is touched, and whatever is left of it goes with the process.
"""
import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess

from comparison import Node, Server, fail, free_port

CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
LOCALHOST = '127.0.0.1'


def isolate():
    """Before any other thread or server. Needs root, as Ganesha and the mounts do."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name, *args):
        if getattr(libc, name)(*args) != 0:
            fail('%s: %s' % (name, os.strerror(ctypes.get_errno())))

    if os.geteuid() != 0:
        fail('only root mounts and runs an NFS server')
    call('unshare', CLONE_NEWNET | CLONE_NEWNS)
    call('mount', b'none', b'/', None, MS_REC | MS_PRIVATE, None)
    call('mount', b'tmpfs', b'/run', b'tmpfs', 0, None)  # sockets and pid files of rpcbind and Ganesha
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        request = fcntl.ioctl(s, SIOCGIFFLAGS, struct.pack('16sH14x', b'lo', 0))
        flags = struct.unpack('16sH14x', request)[1]
        fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack('16sH14x', b'lo', flags | IFF_UP))


def need(program, packages):
    path = shutil.which(program) or shutil.which(program, path='/usr/sbin:/sbin')
    return path or fail('%s is not installed: tools/install-deps bench (%s)' % (program, packages))


def answers(port):
    with socket.socket() as s:
        s.settimeout(1)
        return s.connect_ex((LOCALHOST, port)) == 0


# ---- NFS; `where` is the first arguments of nfsload ----

# No Bind_addr: names of loopback addresses are not resolved in a network that has no others.
GANESHA = '''\
NFS_CORE_PARAM {{ Protocols = 3; NFS_Port = {nfs}; MNT_Port = {mount};
    Enable_NLM = false; Enable_RQUOTA = false; }}
NFSv4 {{ Graceless = true; RecoveryRoot = "{folder}/recovery"; }}
MDCACHE {{ FD_LWMark_Percent = 80; FD_HWMark_Percent = 90; }}
EXPORT {{ Export_Id = 1; Path = "{folder}/export"; Pseudo = "/export"; Protocols = 3; Transports = TCP;
    Access_Type = RW; Squash = None; SecType = sys; FSAL {{ Name = VFS; }} }}
'''


def start_ganesha(folder):
    """It ends where it cannot tell an rpcbind of its ports, so one runs until it has."""
    ports = {'nfs': free_port(), 'mount': free_port()}
    conf, log = os.path.join(folder, 'ganesha.conf'), os.path.join(folder, 'ganesha.log')
    for name in (os.path.join(folder, 'export'), os.path.join(folder, 'recovery'), '/run/ganesha'):
        os.makedirs(name, exist_ok=True)
    with open(conf, 'w', encoding='ascii') as f:
        f.write(GANESHA.format(folder=folder, **ports))

    def ready():
        if not os.path.exists(log) or not answers(ports['nfs']) or not answers(ports['mount']):
            return False
        with open(log, encoding='utf-8', errors='replace') as f:
            return 'SERVER INITIALIZED' in f.read()

    registry = Server(None)
    registry.run(folder, [need('rpcbind', 'rpcbind'), '-f'], lambda: os.path.exists('/run/rpcbind.sock') and answers(111))
    server = Server([str(ports['nfs']), str(ports['mount']), os.path.join(folder, 'export')])
    server.run(folder, [need('ganesha.nfsd', 'nfs-ganesha, nfs-ganesha-vfs'), '-F', '-f', conf, '-L', log, '-N', 'NIV_EVENT',
                        '-p', os.path.join(folder, 'ganesha.pid')], ready)
    registry.stop()
    return server


def node_options(nfs_port):
    """One drive, without copies, as the peers have it; memory for all of the data, as they have the page cache."""
    return ['--nbd-port', str(free_port()), '--nfs-port', str(nfs_port), '--memory', '4G', '--drives', '1',
            '--drive-size', '16G']


def start_ashlard_nfs(args, folder):
    port = free_port()
    node = Node(args, folder, [str(port), str(port), '/files'], node_options(port))
    node.tell('fs', 'create', '--protect', 'none', 'files')
    node.tell('export', 'files', '--nfs', '--no-root-squash')
    return node


# ---- Mounts; `where` is the folder ----

class Mount(Server):
    """A mount whose process stays in the foreground; mount_command() is what starts it."""

    def __init__(self, folder, *server_args):
        super().__init__(*server_args)
        self.folder, self.mounted = folder, None

    def mount_command(self):
        raise NotImplementedError

    def mount(self):
        os.makedirs(self.where, exist_ok=True)
        self.mounted = self.run(self.folder, self.mount_command(), lambda: os.path.ismount(self.where))

    def unmount(self):
        if self.mounted is None:
            return
        subprocess.run(['umount', self.where], check=False, stderr=subprocess.DEVNULL)
        if os.path.ismount(self.where):
            subprocess.run(['umount', '-l', self.where], check=False)
        self.processes.remove(self.mounted)
        self.mounted.stop()
        self.mounted = None

    def mount_again(self):
        """The kernel knows nothing of the files then."""
        self.unmount()
        self.mount()

    def stop(self):
        self.unmount()
        super().stop()


class AshlarMount(Mount, Node):
    def __init__(self, args, folder, options):
        super().__init__(folder, args, folder, os.path.join(folder, 'mnt'), node_options(free_port()))
        self.options = options
        self.tell('fs', 'create', '--protect', 'none', 'files')
        self.mount()

    def mount_command(self):
        return self.command('mount', 'files', self.where, '--foreground') + self.options


class BindfsMount(Mount):
    def __init__(self, folder, options):
        super().__init__(folder, os.path.join(folder, 'mnt'))
        self.options, self.source = options, os.path.join(folder, 'source')
        os.makedirs(self.source)
        self.mount()

    def mount_command(self):
        return [need('bindfs', 'bindfs'), '-f', self.source, self.where] + self.options
