# SPDX-License-Identifier: Apache-2.0
"""What a volume must hold, and reading it back through libnbd."""
import errno
import mmap
import os
import random
import time

import nbd

from node import BLOCK, SLOW, Failed, merge

MIB = 1 << 20


class Content:
    """An image, and behind it a scratch area that the demonstration writes patterns to."""

    def __init__(self, image_path, scratch_len):
        self.file = open(image_path, 'rb')
        self.image_len = os.path.getsize(image_path)
        self.image = mmap.mmap(self.file.fileno(), self.image_len, prot=mmap.PROT_READ)
        self.scratch = bytearray(scratch_len)
        self.size = self.image_len + scratch_len

    def copy(self):
        other = object.__new__(Content)
        other.__dict__.update(self.__dict__)
        other.scratch = bytearray(self.scratch)
        return other

    def at(self, offset, length):
        if offset >= self.image_len:
            offset -= self.image_len
            return bytes(self.scratch[offset:offset + length])
        head = self.image[offset:min(offset + length, self.image_len)]
        return head + bytes(self.scratch[:length - len(head)])

    def write_scratch(self, connection, seed):
        """New random bytes into the whole scratch area, by writes of mixed sizes, some with FUA."""
        dice = random.Random(seed)
        position = 0
        while position < len(self.scratch):
            length = min(dice.choice((4096, 16384, 65536, 262144, MIB)), len(self.scratch) - position)
            data = dice.randbytes(length)
            flags = nbd.CMD_FLAG_FUA if dice.random() < 0.2 else 0
            connection.pwrite(data, self.image_len + position, flags)
            self.scratch[position:position + length] = data
            position += length
        connection.flush()

    def trimmed(self, offset, length):
        """The same with a hole in the image, as (offset, length) to compare() with."""
        other = self.copy()
        other.image = bytearray(self.image[:])
        other.image[offset:offset + length] = bytes(length)
        return other


def connect(uri):
    """A node that just started answers while its volumes are still being opened: tries for 20 s."""
    limit = time.monotonic() + 20 * SLOW
    while True:
        connection = nbd.NBD()
        try:
            connection.connect_uri(uri)
            return connection
        except nbd.Error as error:
            if time.monotonic() > limit:
                raise Failed('cannot connect to %s: %s' % (uri, error)) from error
        time.sleep(0.1)


def read(connection, offset, length):
    """The bytes, or None for EIO; anything else is raised."""
    try:
        return connection.pread(length, offset)
    except nbd.Error as error:
        if error.errnum == errno.EIO:
            return None
        raise


def compare(uri, content):
    """Reads everything: (ranges that gave EIO, ranges that gave wrong bytes), exact to 4 KiB."""
    connection = connect(uri)
    lost, wrong = [], []
    if connection.get_size() != content.size:
        raise ValueError('the volume has %d bytes, not %d' % (connection.get_size(), content.size))
    pieces = [(offset, min(MIB, content.size - offset)) for offset in range(0, content.size, MIB)]
    while pieces:
        offset, length = pieces.pop()
        data = read(connection, offset, length)
        expected = content.at(offset, length)
        if data == expected:
            continue
        if length > BLOCK:
            half = (length // 2 + BLOCK - 1) // BLOCK * BLOCK
            pieces += [(offset, half), (offset + half, length - half)]
        else:
            (lost if data is None else wrong).append((offset, length))
    connection.shutdown()
    return merge(lost), merge(wrong)
