"""Bytes on disk, safely: the only package that creates, writes, renames or removes files."""
