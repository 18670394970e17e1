"""PNG files, straight from the definition of the format."""

from __future__ import annotations

import struct
import zlib

import numpy as np


def pixels(content: bytes) -> np.ndarray:
    """Return the pixels of a PNG file without a palette: uint8 of shape (height, width, 3)."""
    data, place = b"", 8
    while place < len(content):
        size, kind = struct.unpack(">I4s", content[place : place + 8])
        body = content[place + 8 : place + 8 + size]
        if kind == b"IHDR":
            width, height, depth, colours = struct.unpack(">IIBB", body[:10])
            assert (depth, colours) in {(8, 2), (8, 6)}
            step = 3 if colours == 2 else 4
        elif kind == b"IDAT":
            data += body
        place += 12 + size
    lines = np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, 1 + width * step)
    rows = np.zeros((height + 1, width, step), np.uint8)
    for number, line in enumerate(lines):
        rows[number + 1] = _unfiltered(int(line[0]), line[1:].reshape(width, step), rows[number])
    return rows[1:, :, :3]


def _unfiltered(kind: int, line: np.ndarray, above: np.ndarray) -> np.ndarray:
    """Undo the filter of a line; sums are modulo 256."""
    if kind == 1:
        return np.cumsum(line, axis=0, dtype=np.uint8)
    if kind in {0, 2}:
        return line + above * np.uint8(kind // 2)
    found, left, corner = line.astype(int), np.zeros(line.shape[1], int), np.zeros(line.shape[1], int)
    for place, up in enumerate(above.astype(int)):
        guess = (left + up) // 2 if kind == 3 else _paeth(left, up, corner)
        left = found[place] = (found[place] + guess) % 256
        corner = up
    return found


def _paeth(left: np.ndarray, up: np.ndarray, corner: np.ndarray) -> np.ndarray:
    near = np.abs(np.array([up - corner, left - corner, left + up - 2 * corner]))
    return np.where(
        (near[0] <= near[1]) & (near[0] <= near[2]), left, np.where(near[1] <= near[2], up, corner)
    )


def small_png(picture: np.ndarray) -> bytes:
    """Return a PNG file of a picture in its 256 most frequent colors, all others replaced by the nearest."""
    height, width, _ = picture.shape
    packed = picture.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    colors, which, times = np.unique(packed.ravel(), return_inverse=True, return_counts=True)
    kept = np.sort(np.argsort(-times, kind="stable")[:256])
    parts = np.stack([colors >> 16 & 255, colors >> 8 & 255, colors & 255], axis=1).astype(int)
    distance = ((parts[:, None, :] - parts[None, kept, :]) ** 2).sum(axis=2)
    indices = distance.argmin(axis=1).astype(np.uint8)[which].reshape(height, width)
    lines = np.concatenate((np.zeros((height, 1), np.uint8), indices), axis=1)
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", parts[kept].astype(np.uint8).tobytes()),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )
