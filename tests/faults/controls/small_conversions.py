"""Conversions with units of a few tokens, and one that is broken."""


def checkpoints():
    """Let a few tokens have several blocks, units and checkpoints."""
    from tokshard.exchange.conversion import content, conversion

    content.UNIT_BYTES, content.BLOCK_BYTES, conversion.CHECKPOINT_BYTES = 32, 16, 1


def lengths_without_checkpoints():
    """Leave the lengths of documents out of the checkpoints."""
    from tokshard.exchange.conversion import conversion

    checkpoints()

    def checkpoint(self):
        self._journal.checkpoint({conversion.TOKENS_NAME: self._tokens})

    conversion.TokenConversion._checkpoint = checkpoint
