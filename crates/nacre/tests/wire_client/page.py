"""Reads the message definitions out of docs/wire.md, and encodes and decodes messages with them.

The page is the specification: header fields and opcodes stand in its tables, message fields in its `layout` blocks.
Nothing in this file knows a particular message.
"""

import re
import struct

INTEGERS = {"u8": "<B", "u16": "<H", "u32": "<I", "u64": "<Q", "i32": "<i", "i64": "<q"}


class Page:
    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            self.text = file.read()
        self.layouts = {}
        for block in re.findall(r"^```layout\n(.*?)^```", self.text, re.S | re.M):
            self._read_layouts(block)
        self.header = self._read_header()
        self.opcodes, self.requests = self._read_opcodes()
        self.version = int(re.search(r"`version` \| (\d+);", self.text).group(1))
        self.example = bytes.fromhex("".join(re.search(r"```hex\n(.*?)```", self.text, re.S).group(1).split()))

    def _read_layouts(self, block):
        """A line at the margin names a layout; indented lines are its fields: name, type, comment."""
        for line in block.splitlines():
            words = line.split(maxsplit=2)
            if not line.startswith(" "):
                assert words[0] not in self.layouts, f"{words[0]} is defined twice"
                fields = self.layouts[words[0]] = []
            else:
                fields.append((words[0], words[1]))

    def _read_header(self):
        """The rows `| offset | bytes | `field` | ...`, in order and without gaps."""
        fields = []
        for offset, size, name in re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", self.text, re.M):
            assert int(offset) == sum(size for _, size in fields), f"a gap before {name}"
            fields.append((name, int(size)))
        return fields

    def _read_opcodes(self):
        """The rows `| 0x24 | `Create` | modify | `CreateReply` | ...`; callbacks have neither class nor reply."""
        opcodes, requests = {}, {}
        for opcode, name, rest in re.findall(r"^\| 0x([0-9a-f]+) \| `(\w+)`(.*)$", self.text, re.M):
            opcodes[int(opcode, 16)] = name
            found = re.match(r"[^|]*\| (\w+) \| `(\w+)`", rest)
            if found:
                requests[name] = (int(opcode, 16), found.group(1), found.group(2))
        return opcodes, requests

    # ---- headers

    def encode_header(self, **values):
        return b"".join(
            values.get(name, 0).to_bytes(size, "little", signed=name == "status") for name, size in self.header
        )

    def decode_header(self, data):
        values, at = {}, 0
        for name, size in self.header:
            values[name] = int.from_bytes(data[at : at + size], "little", signed=name == "status")
            at += size
        return values

    # ---- bodies

    def encode(self, kind, value):
        """The bytes of a value of the type `kind`; a layout's value is a dictionary."""
        if kind in INTEGERS:
            return struct.pack(INTEGERS[kind], value)
        if kind == "bool":
            return bytes([value])
        if kind in ("uuid", "secret"):
            assert len(value) == 16
            return bytes(value)
        if kind in ("bytes", "text"):
            value = value.encode() if kind == "text" else value
            return struct.pack("<I", len(value)) + value
        if kind.startswith("optional<"):
            return b"\0" if value is None else b"\1" + self.encode(inner(kind), value)
        if kind.startswith("list<"):
            return struct.pack("<I", len(value)) + b"".join(self.encode(inner(kind), v) for v in value)
        fields = self.layouts[kind]
        names = {name for name, _ in fields}
        assert names == set(value), f"{kind} has the fields {names}, and {set(value)} were given"
        return b"".join(self.encode(of, value[name]) for name, of in fields)

    def decode(self, kind, data):
        """The value of the type `kind` at the beginning of `data`, and the bytes behind it."""
        if kind in INTEGERS:
            size = struct.calcsize(INTEGERS[kind])
            return struct.unpack(INTEGERS[kind], data[:size])[0], data[size:]
        if kind == "bool":
            assert data[0] in (0, 1), f"{data[0]} is no bool"
            return data[0] == 1, data[1:]
        if kind in ("uuid", "secret"):
            return data[:16], data[16:]
        if kind in ("bytes", "text"):
            size, data = self.decode("u32", data)
            assert size <= len(data), f"{size} bytes announced, {len(data)} left"
            return data[:size].decode() if kind == "text" else data[:size], data[size:]
        if kind.startswith("optional<"):
            present, data = self.decode("bool", data)
            return self.decode(inner(kind), data) if present else (None, data)
        if kind.startswith("list<"):
            count, data = self.decode("u32", data)
            assert count <= len(data), f"{count} elements announced, {len(data)} bytes left"
            values = []
            for _ in range(count):
                value, data = self.decode(inner(kind), data)
                values.append(value)
            return values, data
        value = {}
        for name, of in self.layouts[kind]:
            value[name], data = self.decode(of, data)
        return value, data


def inner(kind):
    """`T` of `list<T>` and `optional<T>`."""
    return kind[kind.index("<") + 1 : -1]


def _crc32c_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc32c_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF
