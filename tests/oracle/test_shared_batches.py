"""Micro-batches that workers of torch's DataLoader send through shared memory."""

import multiprocessing
import os
import pickle
import signal
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.support import skip_unless_first
from support.loader_plans import open_plan, plan_for, source_of
from tokshard.errors import WorkerError
from tokshard.loader import BatchOptions
from tokshard.loader.shared_batches import SharedBatch
from tokshard.loader.torch import PlanDataset, PlanSampler, data_loader

pytestmark = pytest.mark.oracle
torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def first():
    skip_unless_first()


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    directory = tmp_path_factory.mktemp("plan")
    return plan_for(directory, source=source_of(directory, documents=150))


def sent(batch):
    return bytes(ForkingPickler.dumps(SharedBatch(batch)))


def crosses_in_memory(message):
    return b"/proc/" in message


def open_files():
    """Return the files of this process that micro-batches are in."""
    places = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return {path for path in places if os.path.islink(path) and "tokshard-memory" in os.readlink(path)}


def equal(found, expected):
    return list(found) == list(expected) and all(
        torch.equal(found[name], torch.as_tensor(expected[name])) for name in expected
    )


DTYPES = [torch.int64, torch.float32, torch.bool, torch.int16, torch.int32]


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=3), st.sampled_from(DTYPES)), max_size=4),
            st.integers(0, 3),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_batches_arrive_and_those_that_are_held_never_change(steps):
    held, waiting = [], []
    for number, (fields, unread) in enumerate(steps):
        batch = {
            str(place): torch.full(shape, number + place).to(dtype)
            for place, (shape, dtype) in enumerate(fields)
        }
        message = sent(batch)
        assert crosses_in_memory(message)
        waiting.append((message, batch))
        while len(waiting) > unread:
            message, expected = waiting.pop(0)
            found = pickle.loads(message)
            assert type(found) is dict
            assert [tensor.dtype for tensor in found.values()] == [t.dtype for t in expected.values()]
            held.append((found, expected))
        assert all(equal(found, expected) for found, expected in held)
    for message, _ in waiting:
        pickle.loads(message)
    # No more files than there were micro-batches at once that nobody had read.
    assert len(open_files()) <= 5


def test_what_cannot_cross_in_memory_crosses_as_torch_sends_it(monkeypatch):
    batch = {"tokens": torch.arange(3), "names": ["a"]}
    for other in (batch, {"tokens": torch.arange(3.0, requires_grad=True)}):
        message = sent(other)
        assert not crosses_in_memory(message)
        assert list(pickle.loads(message)) == list(other)
    strided = {"tokens": torch.arange(12).reshape(3, 4).t()}
    assert equal(pickle.loads(sent(strided)), strided)

    def full(*_):
        raise OSError(28, "no space")

    monkeypatch.setattr(os, "pwritev", full)
    message = sent({"tokens": torch.arange(3)})
    assert not crosses_in_memory(message)
    assert pickle.loads(message)["tokens"].tolist() == [0, 1, 2]


def test_a_batch_is_read_once():
    message = sent({"tokens": torch.arange(3)})
    pickle.loads(message)
    for _ in range(2):
        with pytest.raises(WorkerError, match="was read before"):
            pickle.loads(message)
        pickle.loads(sent({"tokens": torch.arange(3)}))


def test_a_batch_of_a_process_that_has_ended_is_an_error():
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        os.write(writing, sent({"tokens": torch.arange(9)}))
        os._exit(0)
    os.waitpid(process, 0)
    message = os.read(reading, 1 << 16)
    os.close(reading)
    os.close(writing)
    assert crosses_in_memory(message)
    with pytest.raises(WorkerError, match="cannot read the micro-batch of a loading worker"):
        pickle.loads(message)


@pytest.mark.parametrize("options", [{}, {"create_attention_mask": True, "document_ids": True}])
def test_batches_that_are_kept_never_change(plan, options):
    options = BatchOptions(**options)
    expected = list(open_plan(plan, options=options))
    batches = data_loader(open_plan(plan, options=options), num_workers=2, prefetch_factor=3)
    kept, parts = [], []
    for number, batch in enumerate(batches):
        assert not any(tensor.is_shared() for tensor in batch.values())
        (kept if number % 3 else parts).append((number, batch if number % 3 else batch["labels"][1:]))
    assert all(equal(batch, expected[number]) for number, batch in kept)
    assert all(np.array_equal(part, expected[number]["labels"][1:]) for number, part in parts)


def collated(batch):
    return {name: tensor + 1 for name, tensor in batch.items()}


def test_a_collate_function_and_a_second_sampler_get_tensors(plan):
    data = open_plan(plan)
    loader = torch.utils.data.DataLoader(
        PlanDataset(data), sampler=PlanSampler(data), batch_size=None, num_workers=1, collate_fn=collated
    )
    for batch, expected in zip(loader, open_plan(plan), strict=True):
        assert equal(batch, {name: array + 1 for name, array in expected.items()})


def test_a_worker_that_is_killed_is_an_error_and_leaves_nothing(plan):
    before, files = set(os.listdir("/dev/shm")), open_files()
    batches = data_loader(open_plan(plan), num_workers=2)
    iterator = iter(batches)
    next(iterator)
    for worker in multiprocessing.active_children():
        os.kill(worker.pid, signal.SIGKILL)
    handler = signal.getsignal(signal.SIGCHLD)
    with pytest.raises(
        (RuntimeError, WorkerError), match=r"exited unexpectedly|killed by signal|cannot read"
    ):
        try:
            list(iterator)
        finally:  # torch's handler raises in whatever runs, also in a method __del__
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    del iterator, batches
    signal.signal(signal.SIGCHLD, handler)
    assert not {name for name in set(os.listdir("/dev/shm")) - before if "torch" in name}
    assert open_files() == files
