"""Loader of one rank: its micro-batches in order, at any step, and from where a run stopped."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from operator import index
from typing import TYPE_CHECKING, Any, Self

from tokshard.errors import UsageError
from tokshard.loader.options import BatchOptions

if TYPE_CHECKING:
    from tokshard.dataset.tokenizer_identity import TokenizerIdentity
    from tokshard.loader.assembly import MicroBatch
    from tokshard.loader.reader import MicroBatchReader
    from tokshard.ranks.consumption import ConsumptionOrder
    from tokshard.ranks.plan import Plan

DEFAULT_OPEN_FILES = 600
DEFAULT_READAHEAD = 8


class RankLoader:
    """Micro-batches of one rank of one stream of a plan: dictionaries of arrays.

    Iteration continues from the current position to the end of the plan, which may be many epochs; after
    the end, the next iteration starts over. ``loader[m]`` and :meth:`batch` read anything at any
    time and do not move it. A rank whose stage reads nothing gets empty dictionaries, as many as the others.

    Datasets are opened when they are first read, and checked to be those that the plan was made for.

    Args:
        plan: The plan.
        rank: The rank in the whole job.
        stream: The name of the stream.
        options: What micro-batches hold.
        max_open_files: About how many files may be open at once (6 for a dataset; one is always open), and no
            more than the limit of the process (``ulimit -n``) less 64.
            The files of a blend's order, and those that bucketing sorts by, are not counted.
        readahead: How many micro-batches a thread asks the kernel for ahead; 0 for none, which is faster
            where all data is in memory already.
        mmap: Whether to map datasets, see :class:`~tokshard.dataset.reader.IndexedDataset`.

    Raises:
        UsageError: There is no such stream, or the options do not fit it.

    Example::

        loader = RankLoader.open("plan", rank=3)
        for batch in loader:
            train(batch["tokens"], batch["labels"])
            checkpoint = loader.state_dict()
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        *,
        stream: str = "train",
        options: BatchOptions | None = None,
        max_open_files: int = DEFAULT_OPEN_FILES,
        readahead: int = DEFAULT_READAHEAD,
        mmap: bool = True,
    ) -> None:
        from tokshard.ranks.manifests import check_rank

        check_rank(plan, rank)
        planned = plan.stream(stream)
        if max_open_files < 1 or readahead < 0:
            raise UsageError(
                f"max_open_files must be at least 1, readahead at least 0, got {max_open_files}, {readahead}"
            )
        self.plan = plan
        self.rank = rank
        self.stream = stream
        self.options = options or BatchOptions()
        self._max_open_files = max_open_files
        self._mmap = mmap
        self._ahead = readahead
        # The arguments of open().
        self._opened: tuple[Any, ...] | None = None
        # The state from which the order of this loader starts, if it is not the order of the plan.
        self._anchor: dict[str, Any] | None = None
        self._open_reader(planned.order)
        self._set_position(0)

    def _open_reader(self, order: ConsumptionOrder) -> None:
        from tokshard.loader.reader import open_reader

        self._process = os.getpid()
        self._reader = open_reader(
            self.plan,
            self.rank,
            self.stream,
            order,
            self.options,
            max_open_files=self._max_open_files,
            mmap=self._mmap,
        )
        self._schedule = self._reader.schedule

    def _set_position(self, position: int) -> None:
        from tokshard.loader.reader import Readahead

        self._position = position
        self._ended = False
        self._readahead = Readahead(self._reader.advise, self._ahead, len(self))

    def _own_reader(self) -> MicroBatchReader:
        # A forked process may inherit locks that nobody will free.
        if self._process != os.getpid():
            self._open_reader(self.order)
            self._set_position(self._position)
        return self._reader

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        rank: int | None = None,
        *,
        roots: Mapping[str, str] | None = None,
        data_parallel: int | None = None,
        micro_batch_size: int | None = None,
        global_batch_size: int | None = None,
        tokenizer: TokenizerIdentity | str | os.PathLike[str] | None = None,
        vocab_size: int | None = None,
        **settings: Any,
    ) -> Self:
        """Open a plan for a rank.

        In mode ``single`` any number of ranks reads the order of the plan: ``data_parallel``,
        ``micro_batch_size`` and ``global_batch_size`` replace those of the plan.

        Args:
            path: The directory of a plan, its ``plan.json``, or the manifest of a planned rank.
            rank: The rank in the whole job; may be left out where ``path`` is a rank's manifest.
            roots: Where data has moved, see :func:`~tokshard.ranks.plan.read_plan`.
            data_parallel: The number of data-parallel ranks of the job, if it differs from the plan.
            micro_batch_size: The samples of a micro-batch of one rank, if it differs from the plan.
            global_batch_size: The samples of every step, instead of the plan's batch size or its ramp-up.
            tokenizer: The tokenizer of the job, which must be that of the data: its identity
                or its path; None to compare nothing.
            vocab_size: The vocabulary size of the model, padding included, which must be larger than all ids
                of the data's tokenizer; None to compare nothing.
            **settings: See the class.

        Warns:
            UserWarning: The data has different tokenizers (``--allow-tokenizer-mismatch``), ``tokenizer`` or
                ``vocab_size`` could not be compared, or ``eod_id`` of the options is not that of the data.

        Raises:
            UsageError: The rank or the stream does not exist, or an option does not fit.
            MissingFileError: The plan was not found.
            IntegrityError: The plan is damaged, or was changed.
            TokenizerMismatchError: The data has another tokenizer, or ids beyond the vocabulary.
            TokenizerError: The tokenizer cannot be read.
        """
        from tokshard.loader.tokenizer import check_tokenizer

        sizes = {
            "data_parallel": data_parallel,
            "micro_batch_size": micro_batch_size,
            "global_batch_size": global_batch_size,
        }
        # Integers of numpy are integers, too.
        rank = None if rank is None else index(rank)
        sizes = {name: None if size is None else index(size) for name, size in sizes.items()}
        loader = cls._open(os.fspath(path), rank, dict(roots or {}), sizes, settings)
        for message in check_tokenizer(loader.plan, tokenizer, vocab_size, loader.options.eod_id):
            warnings.warn(message, UserWarning, stacklevel=2)
        return loader

    @classmethod
    def _open(
        cls,
        path: str,
        rank: int | None,
        roots: dict[str, str],
        sizes: dict[str, int | None],
        settings: dict[str, Any],
    ) -> Self:
        from tokshard.loader.worlds import read_in_world

        plan, rank = read_in_world(path, rank, settings.get("stream", "train"), roots, **sizes)
        loader = cls(plan, rank, **settings)
        loader._opened = (path, rank, roots, sizes, settings)
        return loader

    def __reduce__(self) -> tuple[Any, ...]:
        """Cross processes as the path of the plan and the position; the other side opens the files again."""
        if self._opened is None:
            raise UsageError("only a loader opened by path can be sent to another process")
        return _reopen, (self._opened, self._anchor, self._position)

    def __repr__(self) -> str:
        plan = self.plan_id[:12] if self._opened is None else self._opened[0]
        stream = "" if self.stream == "train" else f", stream={self.stream!r}"
        place = f"rank={self.rank} of {self.plan.topology.world_size}{stream}"
        return f"RankLoader(plan={plan!r}, {place}, step={self.step} of {self.steps})"

    def clone(self) -> RankLoader:
        """Return another loader at the same position, which shares the open files.

        For virtual pipelines: each model chunk has its own iterator over the same micro-batches.
        """
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._set_position(self._position)
        return other

    # What there is.

    @property
    def plan_id(self) -> str:
        """The plan's identity."""
        return self.plan.plan_id

    @property
    def tokenizer(self) -> TokenizerIdentity | None:
        """The tokenizer of the data: vocabulary size, EOD token, digest; None if it is unknown or mixed."""
        return None if self.plan.tokenizer is None else self.plan.tokenizer.identity

    @property
    def order(self) -> ConsumptionOrder:
        """The samples of all data-parallel ranks and steps."""
        return self._schedule.order

    @property
    def origin(self) -> tuple[str, int, int, int]:
        """What micro-batch 0 is: the id of the plan, its consumed samples, epoch and position in the epoch.

        It changes only with a state of another world size, see :meth:`load_state_dict`.
        """
        return self.plan_id, self.order.consumed_samples, *self.order.point(0)

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that the rank reads, of :data:`tokshard.ranks.topology.FIELDS`; may be empty."""
        return self._reader.assembly.fields

    @property
    def steps(self) -> int:
        """The number of steps, the same on every rank."""
        return self.order.steps

    def __len__(self) -> int:
        """Return the number of micro-batches of all steps, the same on every rank."""
        return len(self._schedule)

    def micro_batches(self, step: int) -> range:
        """Return the micro-batches of a step as :meth:`batch` takes them: ``range(n)``.

        Raises:
            IndexError: The step does not exist.
        """
        if not 0 <= step < self.steps:
            raise IndexError(f"step must be from 0 to {self.steps - 1}, got {step}")
        return range(self._schedule.start_of_step(step + 1) - self._schedule.start_of_step(step))

    # Reading anything.

    def __getitem__(self, number: int | None) -> MicroBatch:
        """Return a micro-batch by its number, counted over all steps.

        ``None`` returns the padding sample of Megatron's ``GPTDataset[None]``: a micro-batch of one sample
        with an empty loss mask.

        Raises:
            IndexError: There is no such micro-batch; negative numbers do not count from the end.
            MissingFileError, IntegrityError: A file is missing or has changed.
        """
        reader = self._own_reader()
        return reader.padding() if number is None else reader.micro_batch(number)

    def batch(self, step: int, micro_batch: int | None = None) -> MicroBatch:
        """Return the samples that the rank reads in a step.

        Args:
            step: 0 to ``steps - 1``.
            micro_batch: One of :meth:`micro_batches`; None for all of them as one batch, which is faster
                than one by one.

        Raises:
            IndexError: The step or the micro-batch does not exist.
            MissingFileError, IntegrityError: A file is missing or has changed.
        """
        count = len(self.micro_batches(step))
        first = self._schedule.start_of_step(step)
        if micro_batch is not None:
            if not 0 <= micro_batch < count:
                raise IndexError(
                    f"micro-batch of step {step} must be from 0 to {count - 1}, got {micro_batch}"
                )
            return self[first + micro_batch]
        return self._own_reader().micro_batches(first, count)

    def sample_ids(self, number: int) -> list[int]:
        """Return the ids of the samples of a micro-batch, in the numbering of the stream."""
        return self._own_reader().sample_ids(number)

    # Moving the position.

    def __iter__(self) -> Self:
        if self._ended:
            self.rewind()
        return self

    def __next__(self) -> MicroBatch:
        if self._position >= len(self):
            self._ended = True
            raise StopIteration
        reader = self._own_reader()
        self._readahead.follow(self._position)
        batch = reader.micro_batch(self._position)
        self._position += 1
        return batch

    def read_ahead(self, number: int) -> None:
        """Start reading ahead, in a thread, the micro-batches after one that is about to be read."""
        self._own_reader()
        self._readahead.follow(number)

    def skip(self, count: int = 1) -> None:
        """Skip micro-batches that another reader has read, such as a loading worker.

        Skipping 0 at the end counts as reaching it: the next iteration starts over.

        Raises:
            UsageError: Fewer micro-batches remain.
        """
        if not 0 <= count <= len(self) - self._position:
            raise UsageError(f"cannot skip {count} micro-batches: {len(self) - self._position} remain")
        self._ended = not count and self._position == len(self)
        self._position += count

    @property
    def position(self) -> int:
        """The number of the next micro-batch."""
        return self._position

    @property
    def step(self) -> int:
        """The step of the next micro-batch; at the end, the number of steps."""
        return self._schedule.step(self._position)

    @property
    def consumed_samples(self) -> int:
        """The samples that all ranks have consumed at this position, including those before this plan."""
        return self._schedule.consumed(self._position)

    @property
    def epoch(self) -> int:
        """The epoch of the next sample; at the end, the epoch of the last one."""
        return self.order.point(self._position * self.order.group)[0]

    def rewind(self, steps: int | None = None) -> None:
        """Go back to the start of a step.

        Args:
            steps: The number of steps before the current one; 0 is the start of the current step, None the
                start of the plan.

        Raises:
            UsageError: Fewer steps precede the current one.
        """
        back = self.step if steps is None else steps
        if not 0 <= back <= self.step:
            raise UsageError(f"cannot go back by {steps} from step {self.step}")
        self._set_position(self._schedule.start_of_step(self.step - back))

    def seek(self, consumed_samples: int) -> None:
        """Move to the position at which all ranks have consumed a number of samples, as Megatron counts them.

        In mode ``single`` this is any number of samples of the first epoch, whatever world size has consumed
        them: if no micro-batch starts there, ``step`` counts from there.

        Raises:
            UsageError: No micro-batch starts there, or the plan does not reach it.
        """
        from tokshard.loader.worlds import state_at

        try:
            position = self._schedule.at(index(consumed_samples))
        except UsageError:
            state = state_at(self.plan, self.stream, consumed_samples)
            if state is None:
                raise
            self.load_state_dict(state)
        else:
            self._set_position(position)

    def state_dict(self, position: int | None = None) -> dict[str, Any]:
        """Return the position as a dictionary of JSON values.

        Args:
            position: The number of the next micro-batch, if the caller counts them; None for the current one.

        Raises:
            UsageError: The position is not from 0 to the number of micro-batches.
        """
        if position is not None and not 0 <= position <= len(self):
            raise UsageError(f"position must be from 0 to {len(self)}, got {position}")
        from tokshard.loader.worlds import LoaderState

        number = (self._position if position is None else position) * self.order.group
        return LoaderState.of(self.plan, self.stream, self.order, number).to_json()

    def position_of(self, state: dict[str, Any]) -> int:
        """Return the number of the micro-batch at which :meth:`load_state_dict` would continue.

        Raises:
            ResumeMismatchError, UsageError: See :meth:`load_state_dict`; or steps would be counted from the
                state, which must be loaded into this loader.
        """
        from tokshard.loader.worlds import resume

        order, number = resume(state, self.plan, self.stream, self.order)
        if order is not self.order:
            raise UsageError(
                "the state is of another world size, and its steps are counted from there",
                hint="load it with RankLoader.load_state_dict before the data loader is made",
            )
        return number // order.group

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the position of a loader: of any rank of this plan, or of a plan that it continues.

        A plan continues the plan that it was made from by ``tokshard replan``, at the samples consumed then.
        In mode ``single`` it also continues any plan that reads the same samples in the same order, for any
        world size: if no step of this plan starts there, ``step`` counts from the state, and the epoch under
        way continues with the batches of this plan. All files are opened again when they are next read, and
        compared with the plan.

        Raises:
            ResumeMismatchError: The state is that of another plan or stream.
            UsageError: The state is invalid, or no micro-batch of this plan starts there.
        """
        from tokshard.loader.worlds import resume

        planned = self.plan.streams[self.stream].order
        order, number = resume(state, self.plan, self.stream, planned)
        self._anchor = None if order is planned else dict(state)
        self._open_reader(order)
        self._set_position(number // order.group)

    def close(self) -> None:
        """Close the files; the next read opens them again."""
        self._reader.close()


def _reopen(opened: tuple[Any, ...], anchor: dict[str, Any] | None, position: int) -> RankLoader:
    # The process that sent it has compared the tokenizer.
    loader = RankLoader._open(*opened)  # noqa: SLF001 - of this module
    if anchor is not None:
        loader.load_state_dict(anchor)
    loader._set_position(position)  # noqa: SLF001
    return loader
