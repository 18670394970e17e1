"""The fast encoder, its allow-list, and its comparison with the reference: a folder that can be deleted.

The rest of the code uses only the names of this module.
"""

from tokshard.text.tokenizer.fast.comparison import Comparison, documents_to_compare
from tokshard.text.tokenizer.fast.encoder import (
    FastEncoderRefusedError,
    fast_encoder,
    fast_encoder_refusal,
    has_fast_library,
    import_library,
    load_ahead,
    loading_fast,
)

__all__ = [
    "Comparison",
    "FastEncoderRefusedError",
    "documents_to_compare",
    "fast_encoder",
    "fast_encoder_refusal",
    "has_fast_library",
    "import_library",
    "load_ahead",
    "loading_fast",
]
