"""Usage: check_page.py WIRE.MD GOLDEN.TXT

Decodes and encodes the golden bytes of every message by the page. A message that the page does not describe, or describes
wrongly, ends this with an error.
"""

import sys

from page import Page, crc32c

page = Page(sys.argv[1])
with open(sys.argv[2], encoding="utf-8") as file:
    golden = dict(line.rstrip("\n").split(" ", 1) for line in file)

header = bytes.fromhex(golden.pop("Header"))
assert len(header) == sum(size for _, size in page.header) == 96
values = page.decode_header(header)
assert page.encode_header(**values) == header
expected = dict(
    magic=0x6E637265, version=page.version, kind=4, reserved=0, flags=0x01020304, opcode=0x1516, tag=7, status=-5,
    body_bytes=3, xid=6, last_xid=8, transno=9, last_committed=10, last_stable=11, epoch=12, clock=13, job=14,
    bulk_bytes=4, body_sum=0x17181920, reserved2=0, header_sum=values["header_sum"],
)  # fmt: skip
assert values == expected, values

for name, data in golden.items():
    data = bytes.fromhex(data)
    layout = name.removeprefix("ost::").removesuffix("<'_>")
    assert layout in page.layouts, f"the page has no layout of {layout}"
    value, rest = page.decode(layout, data)
    assert not rest, f"{layout}: {len(rest)} bytes are left over"
    assert page.encode(layout, value) == data, layout

for request, (_, _, reply) in page.requests.items():
    assert request in page.layouts and reply in page.layouts, request

assert crc32c(b"123456789") == 0xE3069283
example = page.decode_header(page.example)
assert page.example[96:] == b"MGS"
today = page.encode_header(**{**example, "version": page.version, "header_sum": 0})[:92]
today += crc32c(today).to_bytes(4, "little") + b"MGS"
assert page.example == today, f"the example of a Hello in the page has to be: {today.hex(' ', -4)}"
print(f"{len(golden)} messages are as the page says")
