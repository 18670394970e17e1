"""Loader of one rank: its micro-batches in order, at any step, and from where a run stopped."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from tokshard.dataset.products import RANK_NAME
from tokshard.dataset.tokenizer_identity import TokenizerIdentity
from tokshard.errors import UsageError
from tokshard.loader.assembly import BatchOptions, MicroBatch
from tokshard.loader.reader import MicroBatchReader, Readahead, make_assembly, open_shards
from tokshard.loader.resume import LoaderState, resume
from tokshard.loader.schedule import MicroBatchSchedule
from tokshard.loader.tokenizer import check_tokenizer
from tokshard.ranks.consumption import ConsumptionOrder
from tokshard.ranks.locator import Locator
from tokshard.ranks.manifests import check_rank, read_rank
from tokshard.ranks.plan import Plan, Stream, read_plan

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
        check_rank(plan, rank)
        _stream(plan, stream)
        if max_open_files < 1 or readahead < 0:
            raise UsageError(
                f"max_open_files must be at least 1, readahead at least 0, got {max_open_files}, {readahead}"
            )
        self.plan = plan
        self.rank = rank
        self.stream = stream
        self.options = options or BatchOptions()
        self._settings: dict[str, Any] = {
            "max_open_files": max_open_files,
            "readahead": readahead,
            "mmap": mmap,
        }
        self._opened: dict[str, Any] | None = None
        self._order = plan.streams[stream].order
        # The state from which the order of this loader starts, if it is not the order of the plan.
        self._anchor: dict[str, Any] | None = None
        self._reader = self._new_reader()
        self._stand(0)

    def _new_reader(self) -> MicroBatchReader:
        self._process = os.getpid()
        topology, options, settings = self.plan.topology, self.options, self._settings
        planned = self.plan.streams[self.stream]
        source, place = planned.source, topology.coordinates(self.rank)
        key_of = planned.open_sort_key()
        self._schedule = MicroBatchSchedule(self._order, place.dp, Locator(source), key_of)
        fields = topology.needs(self.rank, boundaries=planned.document_boundaries or options.cu_seqlens)
        assembly = make_assembly(source, fields, options, topology, place)
        shards = open_shards(
            source, options, max_open_files=settings["max_open_files"], mmap=settings["mmap"]
        )
        return MicroBatchReader(source, self._schedule, assembly, shards)

    def _stand(self, position: int) -> None:
        self._position = position
        self._ended = False
        self._readahead = Readahead(self._reader.advise, self._settings["readahead"], len(self._schedule))

    def _own(self) -> MicroBatchReader:
        # A forked process may inherit locks that nobody will free.
        if self._process != os.getpid():
            self._reader = self._new_reader()
            self._stand(self._position)
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
            path: The directory of a plan, its ``plan.json``, or the manifest of a rank of the planned world.
            rank: The rank in the whole job; may be left out where ``path`` is a rank's manifest.
            roots: Where data has moved, see :func:`~tokshard.ranks.plan.read_plan`.
            data_parallel: The number of data-parallel ranks of the job, if it differs from the plan.
            micro_batch_size: The samples of a micro-batch of one rank, if it differs from the plan.
            global_batch_size: The samples of a step, if it differs from the plan.
            tokenizer: The tokenizer of the job, which must be that of the data: its identity
                or its path; None to compare nothing.
            vocab_size: The vocabulary size of the model, padding included, which must be larger than all ids
                of the data's tokenizer; None to compare nothing.
            **settings: See the class.

        Warns:
            UserWarning: The data has different tokenizers (``--allow-tokenizer-mismatch``), or ``tokenizer``
                or ``vocab_size`` could not be compared.

        Raises:
            UsageError: The rank or the stream does not exist, or an option does not fit.
            MissingFileError: The plan was not found.
            IntegrityError: The plan is damaged, or was changed.
            TokenizerMismatchError: The data has another tokenizer, or ids beyond the vocabulary.
            TokenizerError: The tokenizer cannot be read.
        """
        world = {
            "data_parallel": data_parallel,
            "micro_batch_size": micro_batch_size,
            "global_batch_size": global_batch_size,
        }
        loader = cls._open(path, rank, roots, world, **settings)
        for message in check_tokenizer(loader.plan, tokenizer, vocab_size):
            warnings.warn(message, UserWarning, stacklevel=2)
        return loader

    @classmethod
    def _open(
        cls,
        path: str | os.PathLike[str],
        rank: int | None,
        roots: Mapping[str, str] | None,
        world: dict[str, int | None],
        **settings: Any,
    ) -> Self:
        if any(size is not None for size in world.values()):
            if RANK_NAME.fullmatch(os.path.basename(path)) is not None:
                raise UsageError(
                    f"{os.fspath(path)} is of the planned world, and another one is requested",
                    hint="pass the directory of the plan, and the rank",
                )
            if rank is None:
                raise UsageError("the rank is required to read a plan in another world", hint="pass rank=0")
            plan = read_plan(path, roots=roots)
            plan = _in_world(plan, settings.get("stream", "train"), **world)
        else:
            plan, rank = read_rank(path, rank, roots=roots)
        loader = cls(plan, rank, **settings)
        loader._opened = {
            "path": os.fspath(path),
            "rank": rank,
            "roots": dict(roots or {}),
            "world": world,
            **settings,
        }
        return loader

    def __reduce__(self) -> tuple[Any, ...]:
        """Cross processes as the path of the plan and the state; the other side opens the files again."""
        if self._opened is None:
            raise UsageError("only a loader opened by path can be sent to another process")
        return _reopen, (self._opened, self._anchor, self.state_dict())

    def __repr__(self) -> str:
        plan = self.plan_id[:12] if self._opened is None else self._opened["path"]
        stream = "" if self.stream == "train" else f", stream={self.stream!r}"
        place = f"rank={self.rank} of {self.plan.topology.world_size}{stream}"
        return f"RankLoader(plan={plan!r}, {place}, step={self.step} of {self.steps})"

    def clone(self) -> RankLoader:
        """Return another loader at the same position, which shares the open files.

        For virtual pipelines: each model chunk has its own iterator over the same micro-batches.
        """
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._stand(self._position)
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
        return self._order

    @property
    def origin(self) -> tuple[str, int, int, int]:
        """What micro-batch 0 is: the id of the plan, its consumed samples, epoch and position in the epoch.

        It changes only with a state of another world, see :meth:`load_state_dict`.
        """
        return self.plan_id, self._order.consumed_samples, *self._order.point(0)

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that the rank reads, of :data:`tokshard.ranks.topology.FIELDS`; may be empty."""
        return self._reader.assembly.fields

    @property
    def steps(self) -> int:
        """The number of steps, the same on every rank."""
        return self._order.steps

    def __len__(self) -> int:
        """Return the number of micro-batches of all steps, the same on every rank."""
        return len(self._schedule)

    def micro_batches(self, step: int) -> range:
        """Return the micro-batches of a step as :meth:`batch` takes them: ``range(n)``.

        Raises:
            IndexError: The step does not exist.
        """
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
        reader = self._own()
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
        return self._own().micro_batches(first, count)

    def sample_ids(self, number: int) -> list[int]:
        """Return the ids of the samples of a micro-batch, in the numbering of the stream."""
        return self._own().sample_ids(number)

    # Moving the position.

    def __iter__(self) -> Self:
        if self._ended:
            self.rewind()
        return self

    def __next__(self) -> MicroBatch:
        if self._position >= len(self):
            self._ended = True
            raise StopIteration
        reader = self._own()
        self._readahead.follow(self._position)
        batch = reader.micro_batch(self._position)
        self._position += 1
        return batch

    def read_ahead(self, number: int) -> None:
        """Start reading ahead, in a thread, the micro-batches after one that is about to be read."""
        self._own()
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
        return self._order.point(self._position * self._order.group)[0]

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
        self._stand(self._schedule.start_of_step(self.step - back))

    def seek(self, consumed_samples: int) -> None:
        """Move to the position at which all ranks have consumed a number of samples, as Megatron counts them.

        Raises:
            UsageError: No micro-batch starts there, or the plan does not reach it.
        """
        self._stand(self._schedule.at(consumed_samples))

    def state_dict(self, position: int | None = None) -> dict[str, Any]:
        """Return the position as a dictionary of JSON values.

        Args:
            position: The number of the next micro-batch, if the caller counts them; None for the current one.

        Raises:
            UsageError: The position is not from 0 to the number of micro-batches.
        """
        if position is not None and not 0 <= position <= len(self):
            raise UsageError(f"position must be from 0 to {len(self)}, got {position}")
        number = (self._position if position is None else position) * self._order.group
        planned = self.plan.streams[self.stream]
        return LoaderState.of(self.plan_id, self.stream, planned, self._order, number).to_json()

    def position_of(self, state: dict[str, Any]) -> int:
        """Return the number of the micro-batch at which :meth:`load_state_dict` would continue.

        Raises:
            ResumeMismatchError, UsageError: See :meth:`load_state_dict`; or steps would be counted from the
                state, which must be loaded into this loader.
        """
        order, number = resume(LoaderState.of_dict(state), self.plan, self.stream, self._order)
        if order is not self._order:
            raise UsageError(
                "the state is of another world, and its steps are counted from there",
                hint="load it with RankLoader.load_state_dict before the data loader is made",
            )
        return number // order.group

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the position of a loader: of any rank of this plan, or of a plan that it continues.

        A plan continues the plan that it was made from by ``tokshard replan``, at the samples consumed then.
        In mode ``single`` it also continues any plan that reads the same samples in the same order, for any
        world size: if no step of this plan starts there, ``step`` counts from the state, and the current epoch
        continues with the batches of this plan. All files are opened again when they are next read, and
        compared with the plan.

        Raises:
            ResumeMismatchError: The state is that of another plan or stream.
            UsageError: The state is invalid, or no micro-batch of this plan starts there.
        """
        planned = self.plan.streams[self.stream].order
        order, number = resume(LoaderState.of_dict(state), self.plan, self.stream, planned)
        self._anchor = None if order is planned else dict(state)
        self._order = order
        self._reader = self._new_reader()
        self._stand(number // order.group)

    def close(self) -> None:
        """Close the files; the next read opens them again."""
        self._reader.close()


def _in_world(
    plan: Plan,
    stream: str,
    *,
    data_parallel: int | None,
    micro_batch_size: int | None,
    global_batch_size: int | None,
) -> Plan:
    """Return a plan of one stream for other ranks and batches.

    Raises:
        UsageError: There is no such stream, its ranks own parts, or sizes do not fit.
    """
    from tokshard.ranks.continuation import continue_order
    from tokshard.ranks.modes import ReadingMode
    from tokshard.ranks.schedule import BatchSchedule

    planned = _stream(plan, stream)
    order = planned.order
    if not order.is_independent:
        raise UsageError(
            f"data_parallel, micro_batch_size and global_batch_size require mode single: in mode "
            f"{planned.mode} each rank has its own part",
            hint="make a plan for the new world: tokshard replan OLD_PLAN --consumed-samples N -o NEW_PLAN",
        )
    ranks = order.ranks if data_parallel is None else data_parallel
    schedule = order.schedule if global_batch_size is None else BatchSchedule.constant(global_batch_size)
    reading = ReadingMode.of(
        ranks,
        order.micro_batch_size if micro_batch_size is None else micro_batch_size,
        schedule,
        planned.mode,
        planned.tail,
    )
    order = continue_order(order, order.point(0), order.consumed_samples, reading, schedule)
    model = plan.topology.world_size // plan.topology.data_parallel
    return Plan.of(
        replace(plan.topology, world_size=ranks * model),
        plan.sources,
        {stream: replace(planned, order=order).over(planned.source)},
        plan.history,
        plan.warnings,
        plan.tokenizer,
        plan.tokenizer_mismatches,
    )


def _stream(plan: Plan, name: str) -> Stream:
    if name not in plan.streams:
        raise UsageError(f"stream must be one of {', '.join(sorted(plan.streams))}, got {name!r}")
    return plan.streams[name]


def _reopen(origin: dict[str, Any], anchor: dict[str, Any] | None, state: dict[str, Any]) -> RankLoader:
    # The process that sent it has compared the tokenizer.
    loader = RankLoader._open(**origin)  # noqa: SLF001 - of this module
    if anchor is not None:
        loader.load_state_dict(anchor)
    loader._stand(loader._schedule.at(state["consumed_samples"]))  # noqa: SLF001
    return loader
