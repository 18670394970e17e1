"""Object stores through fsspec: client, block cache, local copies, uploads."""
