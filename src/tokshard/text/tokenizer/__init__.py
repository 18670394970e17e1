"""Tokenizers: loading, identity, EOD, encoders and the equivalence check."""
