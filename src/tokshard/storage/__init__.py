"""Local files: atomic writes, journals, locks and digests."""
