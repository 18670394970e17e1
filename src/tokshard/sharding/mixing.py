"""Mixing of an order: how evenly groups of samples, such as datasets, spread over steps.

The statistic is the design effect of survey sampling (Kish, Survey Sampling, 1965): the variance of the
groups' shares of a step, relative to that of a simple random sample of the same size, which a full shuffle
gives. It is computed over all groups together as Pearson's chi-squared of the table of steps and groups,
divided by the mean of chi-squared over all ways to distribute the same samples to the same steps, which is
``(T - 1) (G - 1) N / (N - 1)`` for T steps, G groups and N samples, also if expected counts are small
(Haldane, The mean and variance of chi-squared, when used as a test of homogeneity, when expectations are
small, Biometrika 31, 1940; for the relation of the two see Rao and Scott, The analysis of categorical data
from complex sample surveys, JASA 76, 1981).

So 1 is a full shuffle. With 4, steps are as uneven as steps of a quarter of their samples would be with a
full shuffle; with steps of one group each it is about the number of samples of a step. Below 1, steps are
more even than random ones, as in a blend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


def design_effect(steps: Integers, groups: Integers) -> float | None:
    """Return the design effect of steps on the shares of groups.

    Args:
        steps: The step of each sample: int64 of shape ``(n,)``, any numbers.
        groups: The group of each sample: int64 of shape ``(n,)``, any numbers.

    Returns:
        None if there are fewer than two steps or groups.

    Example:
        >>> steps = np.array([0, 0, 1, 1, 2, 2])
        >>> design_effect(steps, np.array([0, 1, 0, 1, 0, 1]))
        0.0
        >>> design_effect(steps, np.array([0, 0, 1, 1, 2, 2]))
        2.5
    """
    _, step, of_step = np.unique(steps, return_inverse=True, return_counts=True)
    _, group, of_group = np.unique(groups, return_inverse=True, return_counts=True)
    if min(of_step.size, of_group.size) < 2:
        return None
    samples = steps.size
    # Only cells of the table that have samples: there may be millions of others.
    cells, counts = np.unique(step.astype(np.int64) * of_group.size + group, return_counts=True)
    row, column = np.divmod(cells, of_group.size)
    squares = (counts.astype(np.float64) ** 2 / of_step[row] / of_group[column]).sum()
    chi_squared = samples * (float(squares) - 1)
    expected = (of_step.size - 1) * (of_group.size - 1) * samples / (samples - 1)
    return max(chi_squared, 0.0) / expected
