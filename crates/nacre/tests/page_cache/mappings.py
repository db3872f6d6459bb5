"""Mappings and reads of one file through two mounts, whose directories are the arguments."""

import mmap
import os
import sys

A, B = (os.path.join(directory, "") for directory in sys.argv[1:3])
LEN = 20000


def check(is_so, what):
    if not is_so:
        sys.exit(f"wrong: {what}")


def opened(name, flags):
    return os.open(name, flags)


# A mapping for reading shows what the other mount has written.
with open(A + "f", "wb") as file:
    file.write(b"a" * LEN)
reader = mmap.mmap(opened(B + "f", os.O_RDONLY), LEN, mmap.MAP_SHARED, mmap.PROT_READ)
check(reader[:] == b"a" * LEN, "a mapping")
writer = opened(A + "f", os.O_RDWR)
os.pwrite(writer, b"b" * LEN, 0)
check(reader[:] == b"b" * LEN, "a mapping after a write of the other mount")

# A store through a mapping is seen by the readers of both mounts after msync.
with open(A + "g", "wb") as file:
    file.write(b"1" * 8192)
readers = [opened(A + "g", os.O_RDONLY), opened(B + "g", os.O_RDONLY)]
check(all(os.pread(fd, 10, 0) == b"1" * 10 for fd in readers), "reads before")
stored = opened(B + "g", os.O_RDWR)
mapping = mmap.mmap(stored, 8192)
for value in range(20):
    mapping[0:4096] = bytes([65 + value]) * 4096
    mapping.flush()
    for fd in readers:
        check(os.pread(fd, 4096, 0) == bytes([65 + value]) * 4096, f"a read after msync {value}")

# Writes of the other mount beside and over dirty pages of a mapping end.
mapping[4096:4100] = b"dirt"
other = opened(A + "g", os.O_RDWR)
os.pwrite(other, b"x" * 4096, 0)
os.pwrite(other, b"x" * 8192, 0)
mapping.close()
os.close(stored)

# One mount: a reader from before sees stores through a mapping at once.
with open(A + "h", "wb") as file:
    file.write(b"h" * 8192)
reader = opened(A + "h", os.O_RDONLY)
check(os.pread(reader, 8192, 0) == b"h" * 8192, "a read of the same mount")
mapping = mmap.mmap(opened(A + "h", os.O_RDWR), 8192)
for value in range(50):
    mapping[value] = 65 + value
    check(os.pread(reader, 1, value) == bytes([65 + value]), f"a read of the same mount after store {value}")
mapping.flush()
check(os.pread(reader, 50, 0) == bytes(range(65, 115)), "a read after the last msync")
