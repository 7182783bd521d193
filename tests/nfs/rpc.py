# SPDX-License-Identifier: Apache-2.0
"""ONC RPC over TCP (RFC 5531) by hand, as far as tests need it: calls of one connection, one at a time, as uid 0."""
import socket
import struct

PORTMAP, NFS, MOUNT, NLM, NSM = 100000, 100003, 100005, 100021, 100024


class Refused(Exception):
    """The server answered, but not with a result."""


def opaque(data):
    return struct.pack('>I', len(data)) + data + b'\0' * (-len(data) % 4)


def receive(connection, length):
    data = b''
    while len(data) < length:
        more = connection.recv(length - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def receive_record(connection):
    return receive(connection, struct.unpack('>I', receive(connection, 4))[0] & 0x7fffffff)


def send_record(connection, data):
    connection.sendall(struct.pack('>I', 0x80000000 | len(data)) + data)


class Rpc:
    xid = 0

    def __init__(self, port):
        self.connection = socket.create_connection(('127.0.0.1', port), 20)

    def call(self, program, version, procedure, args=b''):
        """The result, behind the head of the reply; Refused, or EOFError when the connection ends."""
        Rpc.xid += 1
        credential = struct.pack('>I', 0) + opaque(b'test') + struct.pack('>III', 0, 0, 0)
        head = struct.pack('>7I', Rpc.xid, 0, 2, program, version, procedure, 1)
        send_record(self.connection, head + opaque(credential) + struct.pack('>II', 0, 0) + args)
        reply = receive_record(self.connection)
        words = struct.unpack('>6I', reply[:24])
        if words[0] != Rpc.xid or words[1:3] != (1, 0) or words[5] != 0:
            raise Refused('RPC reply %r' % (words,))
        return reply[24:]

    def mount(self, path):
        """MNT of MOUNT version 3: the handle; Refused with the status."""
        reply = self.call(MOUNT, 3, 1, opaque(path.encode()))
        status = struct.unpack_from('>I', reply)[0]
        if status != 0:
            raise Refused('%s cannot be mounted: %d' % (path, status))
        return reply[8:8 + struct.unpack_from('>I', reply, 4)[0]]

    def exports(self):
        """EXPORT of MOUNT version 3, what `showmount -e` asks for: {path: [group…]}."""
        reply, at, found = self.call(MOUNT, 3, 5), 0, {}

        def word():
            nonlocal at
            at += 4
            return struct.unpack_from('>I', reply, at - 4)[0]

        def text():
            nonlocal at
            length = word()
            at += (length + 3) & ~3
            return reply[at - ((length + 3) & ~3):][:length].decode()

        while word():
            groups = found.setdefault(text(), [])
            while word():
                groups.append(text())
        return found
