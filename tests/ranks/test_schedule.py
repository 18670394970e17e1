"""Batch sizes over time against Megatron's rules written out."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tokshard.core.codec import decode, encode
from tokshard.errors import IntegrityError, UsageError
from tokshard.ranks.schedule import BatchSchedule

SMALL = st.integers(1, 8)


def plain_rampup(consumed, start, increment, samples, size):
    if consumed > samples:
        return size
    each = samples / ((size - start) // increment)
    return start + int(consumed / each) * increment


@given(SMALL, SMALL, st.integers(1, 40), st.integers(1, 60) | st.integers(1, 10**9), st.data())
def test_the_ramp_up_is_megatrons_at_every_count(start, increment, increments, samples, data):
    size = start + increments * increment
    schedule = BatchSchedule.rampup(start, increment, samples, size)
    around = {max(0, threshold + shift) for threshold, _ in schedule.segments for shift in (-1, 0, 1)}
    asked = data.draw(st.lists(st.integers(0, 2 * samples), max_size=20))
    for consumed in [*asked, *around, samples - 1, samples, samples + 1]:
        assert schedule.size_at(consumed) == plain_rampup(consumed, start, increment, samples, size)


@st.composite
def schedules(draw):
    group = draw(SMALL)
    steps = draw(st.lists(st.tuples(st.integers(1, 200), st.integers(1, 9)), max_size=5))
    segments, threshold = [(0, group * draw(st.integers(1, 9)))], 0
    for distance, size in steps:
        threshold += distance
        segments.append((threshold, size * group))
    return BatchSchedule(tuple(segments), round_down=False), group


@given(schedules(), st.integers(0, 500))
def test_steps_and_consumed_samples_follow_a_walk_through_the_run(made, start):
    schedule, group = made
    timeline = schedule.timeline(group, start)
    consumed, walked = start, []
    for step in range(120):
        walked.append(consumed)
        assert timeline.batch_size(step) == schedule.size_at(consumed)
        assert timeline.batch_size(step) % group == 0
        consumed += schedule.size_at(consumed)
    assert timeline.consumed(np.arange(120)).tolist() == walked
    samples = np.arange(start, consumed)
    assert (
        timeline.step_of(samples).tolist() == np.repeat(np.arange(120), np.diff([*walked, consumed])).tolist()
    )
    assert [timeline.boundary(count) for count in walked] == list(range(120))
    for samples_given in (0, 1, walked[7] - start, walked[7] - start + 1):
        fitting = [step for step in range(120) if walked[step] - start <= samples_given]
        assert timeline.steps_within(samples_given) == fitting[-1]


@given(schedules(), st.integers(0, 300), st.integers(1, 30))
def test_limits_change_nothing_before_them(made, start, steps):
    schedule, group = made
    whole, limited = schedule.timeline(group, start), schedule.timeline(group, start, steps=steps)
    within = np.arange(steps + 1)
    assert np.array_equal(whole.consumed(within), limited.consumed(within))
    stop = int(whole.consumed(np.array([steps]))[0])
    limited = schedule.timeline(group, start, stop=stop)
    assert np.array_equal(whole.consumed(within), limited.consumed(within))


def test_a_size_that_is_never_used_may_be_indivisible():
    schedule = BatchSchedule.parse("0:6 100:8 200:16")
    assert schedule.timeline(8, 100).pieces == ((0, 100, 8), (13, 204, 16))
    assert schedule.timeline(6, 0, stop=96).pieces == ((0, 0, 6),)
    assert schedule.timeline(6, 0, steps=17).pieces == ((0, 0, 6),)
    with pytest.raises(UsageError, match=r".from 100 consumed samples on. must be divisible .* = 6, got 8"):
        schedule.timeline(6)


def test_sizes_are_rounded_down_where_allowed():
    schedule = BatchSchedule.rampup(8, 8, 90, 32, round_down=True)
    assert [size for _, _, size in schedule.timeline(6).pieces] == [6, 12, 24, 30]
    with pytest.raises(UsageError, match=r"global batch size .* = 12, got 8"):
        schedule.timeline(12)


@pytest.mark.parametrize(
    ("text", "sequence_length", "segments"),
    [
        ("0:768 250B:1536 500B:3072", 4096, ((0, 768), (61035156, 1536), (122070312, 3072))),
        ("0:8,10:16, 1k:32", None, ((0, 8), (10, 16), (1000, 32))),
        ("1.5M:16 0:8", None, ((0, 8), (1500000, 16))),
        ("0:0.5K", 10, ((0, 500),)),
        ("0:8 1T:16", 1, ((0, 8), (10**12, 16))),
        # 2.01 * 1000 is 2009.9999999999998 in floating point, and so 2009 as in Megatron.
        ("0:8 2.01K:16", None, ((0, 8), (2009, 16))),
    ],
)
def test_schedules_are_read_as_megatron_reads_them(text, sequence_length, segments):
    assert BatchSchedule.parse(text, sequence_length).segments == segments


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "from 1 to 100000 sizes, got 0"),
        ("8", "must be THRESHOLD:SIZE, got '8'"), ("0:x", "'X' in '0:x'"),
        ("5:8", "first threshold of a batch size schedule must be 0, got 5"),
        ("0:8 0:16", "must ascend, got 0, 0"),
        ("0:8 10:16 10:8", "must ascend"), ("0:0", "size must be at least 1, got 0"),
        ("0:-8", "'-8'"), ("0:nan", "'NAN'"),
        ("0:8 inf:9", "'INF'"),
        ("0:2.01K", "plain integers, got '0:2.01K'"), ("0:1.5", "plain integers, got '0:1.5'"),
        ("0:8:9", "'8:9'"), ("0:K", "'K'"),
    ],
)  # fmt: skip
def test_schedules_that_cannot_be_meant_are_usage_errors(text, said):
    with pytest.raises(UsageError, match=said):
        BatchSchedule.parse(text)


def test_thresholds_in_tokens_that_fall_on_one_sample_do_not_ascend():
    with pytest.raises(UsageError, match="must ascend"):
        BatchSchedule.parse("0:8 4096:16 5000:32", 4096)


@pytest.mark.parametrize(
    "numbers",
    [(8, 8, 100, 8), (8, 8, 100, 4), (8, 3, 100, 16), (0, 8, 100, 16), (8, 8, 0, 16), (8, 0, 9, 16)],
)
def test_ramps_that_do_not_rise_evenly_are_usage_errors(numbers):
    with pytest.raises(UsageError, match="--rampup-batch-size"):
        BatchSchedule.rampup(*numbers)


def test_a_count_within_a_step_is_no_boundary():
    timeline = BatchSchedule.constant(16).timeline(8, 32)
    with pytest.raises(UsageError, match="must be at the end of a step, got 40: step 0 starts at 32"):
        timeline.boundary(40)
    with pytest.raises(UsageError, match="must be at least"):
        timeline.boundary(16)


@given(schedules(), st.booleans())
def test_schedules_survive_json(made, round_down):
    schedule = BatchSchedule(made[0].segments, round_down)
    assume(len(schedule.segments) > 0)
    assert decode(BatchSchedule, encode(schedule), "plan.json") == schedule


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"sizes": [[0, 8]]},
        {"sizes": [], "round_down": False},
        {"sizes": [[0, 8.5]], "round_down": False},
        {"sizes": [[1, 8]], "round_down": False},
        {"sizes": [[0, 8]], "round_down": 1},
        {"sizes": [[0, 8]], "round_down": False, "more": 1},
        {"sizes": [[0]], "round_down": False},
        {"sizes": 5, "round_down": True},
    ],
)
def test_json_that_is_no_schedule_is_an_integrity_error(value):
    with pytest.raises(IntegrityError, match=r"plan\.json"):
        decode(BatchSchedule, value, "plan.json")


def test_a_schedule_counts_in_int64():
    assert BatchSchedule.constant(2**62).size_at(0) == 2**62
    for segments in (((0, 2**62 + 1),), ((0, 1), (2**62 + 1, 2))):
        with pytest.raises(UsageError, match=r"at most 2\*\*62"):
            BatchSchedule(segments, round_down=False)


def test_a_schedule_in_words_is_read_again():
    assert BatchSchedule.constant(16).text == "16"
    text = "0:16 100:32 1000:64"
    assert BatchSchedule.parse(text).text == text
