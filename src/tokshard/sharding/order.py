"""The order of an epoch: from the positions that ranks read to sample ids, through a chain of links.

The chain is read from the reading end to the data: ``bucket``, then ``shuffle``, then the ids of the blend
(whose samples are packed already). A replan puts a selection of what is unread in front of the chain, so
that the rest of an epoch keeps the order that it was going to have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tokshard.errors import IntegrityError, UsageError
from tokshard.sharding.bucketing import Bucketing
from tokshard.sharding.intervals import Intervals
from tokshard.sharding.layouts import layout_from_json
from tokshard.sharding.links import ReadOrder, Selection, ShardShuffle, Shuffle, Torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.sharding.bucketing import KeyOf

    Integers = NDArray[np.int64]

Link = Bucketing | Torch | Shuffle | ShardShuffle | Selection | ReadOrder

_KINDS: dict[str, type[Link]] = {
    "bucketing": Bucketing,
    "torch": Torch,
    "shuffle": Shuffle,
    "shards": ShardShuffle,
    "selection": Selection,
    "read-order": ReadOrder,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_ALGORITHMS = {name: kind.__dataclass_fields__.get("algorithm") for name, kind in _KINDS.items()}

# A chain grows by a selection or two with each replan that changes the mode.
MAX_LINKS = 1000


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """An order of (some of) the ids 0 to ``total - 1``.

    Attributes:
        total: The number of ids of the data.
        links: From the reading end to the data; none for the order of the ids.

    Raises:
        UsageError: Two links that follow each other do not fit.

    Example:
        >>> order = SampleOrder(10, (Selection(10, Intervals.of([(2, 4), (8, 10)])),))
        >>> order.samples, order.ids(np.arange(4), epoch=0).tolist()
        (4, [2, 3, 8, 9])
        >>> order.positions(np.array([8, 0]), epoch=0).tolist()
        [2, -1]
    """

    total: int
    links: tuple[Link, ...] = ()

    def __post_init__(self) -> None:
        if self.total < 1:
            raise UsageError(f"there are {self.total} samples to put in order")
        if len(self.links) > MAX_LINKS:
            raise UsageError(f"an order of {len(self.links)} links is longer than {MAX_LINKS}")
        behind = self.total
        for link in reversed(self.links):
            before = link.of if isinstance(link, Selection) else link.samples
            if before != behind:
                raise UsageError(f"a {_NAMES[type(link)]} of {before} samples is put before {behind} samples")
            behind = link.samples

    @property
    def samples(self) -> int:
        """The number of positions."""
        return self.links[0].samples if self.links else self.total

    def ids(self, positions: Integers, epoch: int, key_of: KeyOf | None = None) -> Integers:
        """Return the sample id at each position.

        Args:
            positions: int64 of shape ``(n,)``, each 0 to ``samples - 1`` (trusted).
            epoch: The epoch.
            key_of: Returns the sort keys of an array of ids; needed with bucketing.

        Raises:
            UsageError: Bucketing without ``key_of``.
        """
        for number, link in enumerate(self.links):
            if isinstance(link, Bucketing):
                positions = link.forward(positions, epoch, self._keys_behind(number, epoch, key_of))
            else:
                positions = link.forward(positions, epoch)
        return positions

    def positions(self, ids: Integers, epoch: int, key_of: KeyOf | None = None) -> Integers:
        """Return the position of each id, or -1 where the order leaves it out; see :meth:`ids`."""
        for number in range(len(self.links) - 1, -1, -1):
            link = self.links[number]
            known = ids >= 0
            if isinstance(link, Bucketing):
                found = link.inverse(ids[known], epoch, self._keys_behind(number, epoch, key_of))
            else:
                found = link.inverse(ids[known], epoch)
            ids = np.full(ids.shape, -1, dtype=np.int64)
            ids[known] = found
        return ids

    def rest(self, unread: Intervals) -> SampleOrder:
        """Return the order of the positions that are unread, as they were going to come.

        Raises:
            UsageError: Nothing is unread.
        """
        if unread.count == self.samples:
            return self
        if self.links and isinstance(self.links[0], Selection):
            first = self.links[0]
            kept = first.kept.select(unread)
            return SampleOrder(self.total, (Selection(first.of, kept), *self.links[1:]))
        return SampleOrder(self.total, (Selection(self.samples, unread), *self.links))

    def before(self, link: Link) -> SampleOrder:
        """Return this order with one more link at the reading end."""
        return SampleOrder(self.total, (link, *self.links))

    def _keys_behind(self, number: int, epoch: int, key_of: KeyOf | None) -> KeyOf:
        if key_of is None:
            raise UsageError("an order with bucketing needs the sort keys of the samples")
        behind = SampleOrder(self.total, self.links[number + 1 :])
        return lambda positions: key_of(behind.ids(positions, epoch, key_of))

    def to_json(self) -> dict[str, Any]:
        """Return the order as JSON values."""
        return {"total": self.total, "links": [_link_to_json(link) for link in self.links]}

    @classmethod
    def from_json(cls, value: Any, path: str) -> Self:
        """Return the order that :meth:`to_json` gave.

        Raises:
            IntegrityError: It is none, or a newer tokshard's.
        """
        if not isinstance(value, dict) or set(value) != {"total", "links"} or type(value["total"]) is not int:
            raise IntegrityError(f"{path}: an order is not made of total and links", path=path)
        if not isinstance(value["links"], list):
            raise IntegrityError(f"{path}: the links of an order are not a list", path=path)
        try:
            return cls(value["total"], tuple(_link_from_json(link, path) for link in value["links"]))
        except UsageError as error:
            raise IntegrityError(f"{path}: {error}", path=path) from error


def _link_to_json(link: Link) -> dict[str, Any]:
    fields = {name: getattr(link, name) for name in link.__slots__}
    if isinstance(link, Selection):
        fields["kept"] = link.kept.to_json()
    if isinstance(link, ReadOrder):
        fields["layout"] = link.layout.to_json()
    if isinstance(link, ShardShuffle):
        fields["sizes"] = list(link.sizes)
    return {"link": _NAMES[type(link)], **fields}


def _link_from_json(value: Any, path: str) -> Link:
    name = str(value.get("link")) if isinstance(value, dict) else ""
    kind = _KINDS.get(name)
    if kind is None or set(value) != {"link", *kind.__slots__}:
        raise IntegrityError(f"{path}: a link of an order has an unknown kind or other fields", path=path)
    fields: dict[str, Any] = {field: value[field] for field in kind.__slots__}
    algorithm = _ALGORITHMS[name]
    if algorithm is not None and fields["algorithm"] != algorithm.default:
        raise IntegrityError(
            f"{path}: the algorithm of a {name} is {fields['algorithm']!r}, not {algorithm.default!r}",
            path=path,
            field="algorithm",
            hint="the plan was written by another version of tokshard: use that one",
        )
    if kind is Selection:
        fields["kept"] = Intervals.from_json(fields["kept"], path)
    if kind is ReadOrder:
        fields["layout"] = layout_from_json(fields["layout"], path)
    if kind is ShardShuffle and isinstance(fields["sizes"], list):
        fields["sizes"] = tuple(fields["sizes"])
    for field, found in fields.items():
        _check_field(field, found, path)
    try:
        return kind(**fields)
    except UsageError as error:
        raise IntegrityError(f"{path}: {error}", path=path) from error


def _check_field(name: str, value: Any, path: str) -> None:
    if name in {"kept", "layout", "algorithm"}:
        return
    if name == "per_epoch":
        good = type(value) is bool
    elif name == "sizes":
        good = isinstance(value, tuple) and all(type(size) is int for size in value)
    else:
        good = type(value) is int
    if not good:
        raise IntegrityError(f"{path}: {name} of a link of an order is {value!r}", path=path, field=name)
