"""Defaults of Megatron's arguments."""

SEED = 1234

SPLIT = "969, 30, 1"
"""It keeps 3.1% of the data from training."""

SURPLUS = 0.005
"""``--mid-level-dataset-surplus``."""

EVAL_INTERVAL = 1000

EVAL_ITERS = 100
