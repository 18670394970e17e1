"""Defaults of Megatron's arguments."""

SEED = 1234

SPLIT = "969, 30, 1"
"""It reserves 3.1% of the data for validation and test."""

SURPLUS = 0.005
"""``--mid-level-dataset-surplus``."""

EVAL_INTERVAL = 1000
"""Of Megatron 0.15; later versions have no default, and fail without ``--eval-interval``."""

EVAL_ITERS = 100
