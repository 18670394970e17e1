"""The verify command: products checked against their recorded digests."""
