"""A deliberately bad reader: a line that spans two chunks is lost. The chunking property must catch it."""


def lines(data, chunk_bytes):
    """Return (offset, line) of the lines that lie within one chunk."""
    found = []
    for start in range(0, len(data), chunk_bytes):
        chunk = data[start : start + chunk_bytes]
        offset = start
        if start and data[start - 1 : start] != b"\n":
            skipped = chunk.find(b"\n") + 1
            offset, chunk = start + skipped, chunk[skipped:] if skipped else b""
        is_last = start + chunk_bytes >= len(data)
        for line in chunk.splitlines(keepends=True):
            if line.endswith(b"\n") or is_last:
                found.append((offset, line.rstrip(b"\n")))
            offset += len(line)
    return found
