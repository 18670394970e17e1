"""The inner loop of a blend of few sources, in vector instructions.

At each step all lags are compared at once: the sources are lanes of a few vectors that stay in registers. A
loop over sources is compiled to vectors only with floating-point rules that would allow other results, so
the vectors are written out, as LLVM's instructions; a processor with shorter vectors takes several for one.
The compiled kernel is kept for its speed: ``scripts/bench indices`` measures it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_LANES = 64
"""The most sources that are compared at once."""

# The lanes of a vector and the vectors, by the number of sources: two short vectors have the least latency.
_SHAPES = {8: (4, 2), 16: (4, 4), 32: (8, 4), 64: (8, 8)}


def draw_steps(
    weights: NDArray[np.float64],
    counts: NDArray[np.float64],
    first: int,
    steps: int,
    winners: NDArray[np.int64],
    lanes: int,
) -> None:
    """Make some steps of a blend: at each the lane that lags most, the first of equals.

    The lag of a lane at step k is ``weights * max(k, 1) - counts``, in two roundings. It is only called by
    compiled kernels, for which :func:`prepare` defines it.

    Args:
        weights: The weight of each lane; 0 where there is no source.
        counts: The draws of each lane before the first step; infinite where there is no source.
        first: The number of the first step.
        steps: The number of steps.
        winners: The lane drawn at each step; written.
        lanes: The number of lanes: 8, 16, 32 or 64.
    """
    raise NotImplementedError


@cache
def prepare() -> None:
    """Define :func:`draw_steps` for numba."""
    from numba.extending import overload

    few, more, many, most = (_intrinsic(*shape) for shape in _SHAPES.values())

    @overload(draw_steps)
    def _define(weights: Any, counts: Any, first: Any, steps: Any, winners: Any, lanes: Any) -> Any:  # noqa: ARG001 - numba matches the names
        def draw(weights: Any, counts: Any, first: Any, steps: Any, winners: Any, lanes: Any) -> None:
            if lanes == 8:
                few(weights, counts, first, steps, winners)
            elif lanes == 16:
                more(weights, counts, first, steps, winners)
            elif lanes == 32:
                many(weights, counts, first, steps, winners)
            else:
                most(weights, counts, first, steps, winners)

        return draw


def _intrinsic(width: int, vectors: int) -> Any:
    from numba import types
    from numba.extending import intrinsic

    @intrinsic
    def draw(_: Any, weights: Any, counts: Any, first: Any, steps: Any, winners: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            addresses = [
                context.make_array(kind)(context, builder, argument).data
                for kind, argument in zip(signature.args, arguments, strict=True)
                if isinstance(kind, types.Array)
            ]
            _emit(builder, addresses, arguments[2], arguments[3], width, vectors)
            return context.get_dummy_value()

        return types.void(weights, counts, first, steps, winners), emit

    return draw


def _emit(  # noqa: PLR0915 - one instruction after the other
    builder: Any, addresses: list[Any], first: Any, steps: Any, width: int, vectors: int
) -> None:
    # The blocks: `step` (is there another?), `lags`, `tie` where several are the greatest, `draw`, `end`.
    from llvmlite import ir

    long, lane, bit = ir.IntType(64), ir.IntType(32), ir.IntType(1)
    vector = ir.VectorType(ir.DoubleType(), width)
    every = range(vectors)
    weights, counts = (builder.bitcast(address, vector.as_pointer()) for address in addresses[:2])
    winners = addresses[2]

    def pick(one: Any, other: Any, lanes: Any) -> Any:
        return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(lane, len(lanes)), list(lanes)))

    def filled(value: Any) -> Any:
        nothing = ir.Constant(ir.VectorType(value.type, width), ir.Undefined)
        return pick(builder.insert_element(nothing, value, ir.Constant(lane, 0)), nothing, [0] * width)

    def greater(one: Any, other: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", one, other), one, other)

    def part(address: Any, number: int) -> Any:
        return builder.load(builder.gep(address, [ir.Constant(long, number)]), align=8)

    weight, before = [part(weights, v) for v in every], [part(counts, v) for v in every]
    entry = builder.block
    names = "step", "lags", "tie", "draw", "end"
    step, lags, tie, draw, end = (builder.append_basic_block(name) for name in names)
    builder.branch(step)

    builder.position_at_end(step)
    done = builder.phi(long)
    done.add_incoming(ir.Constant(long, 0), entry)
    count = [builder.phi(vector) for _ in every]
    for v in every:
        count[v].add_incoming(before[v], entry)
    builder.cbranch(builder.icmp_signed("<", done, steps), lags, end)

    builder.position_at_end(lags)
    number, one = builder.add(first, done), ir.Constant(long, 1)
    number = builder.select(builder.icmp_signed(">", number, one), number, one)
    x = filled(builder.sitofp(number, vector.element))
    lag = [builder.fsub(builder.fmul(weight[v], x), count[v]) for v in every]
    best = lag
    while len(best) > 1:
        best = [greater(best[k], best[k + 1]) for k in range(0, len(best), 2)]
    greatest, distance = best[0], width // 2
    while distance:  # at the end each lane has the greatest of all
        greatest = greater(greatest, pick(greatest, greatest, [k ^ distance for k in range(width)]))
        distance //= 2
    hit = [builder.fcmp_ordered("==", one_lag, greatest) for one_lag in lag]
    joined = hit
    while len(joined) > 1:
        pairs = [(joined[k], joined[k + 1]) for k in range(0, len(joined), 2)]
        joined = [pick(one, other, range(2 * one.type.count)) for one, other in pairs]
    word = ir.IntType(width * vectors)
    bits = builder.bitcast(joined[0], word)
    winner = builder.cttz(bits, ir.Constant(bit, 1))
    winner = winner if word.width == 64 else builder.zext(winner, long)
    others = builder.and_(bits, builder.sub(bits, ir.Constant(word, 1)))
    builder.cbranch(builder.icmp_unsigned("!=", others, ir.Constant(word, 0)), tie, draw)

    builder.position_at_end(tie)
    same, numbers = filled(winner), ir.VectorType(long, width)
    only = [
        builder.icmp_signed("==", same, ir.Constant(numbers, list(range(v * width, (v + 1) * width))))
        for v in every
    ]
    builder.branch(draw)

    builder.position_at_end(draw)
    drawn = [builder.phi(ir.VectorType(bit, width)) for _ in every]
    for v in every:
        drawn[v].add_incoming(hit[v], lags)
        drawn[v].add_incoming(only[v], tie)
    ones, zeros = ir.Constant(vector, [1.0] * width), ir.Constant(vector, [0.0] * width)
    for v in every:
        count[v].add_incoming(builder.fadd(count[v], builder.select(drawn[v], ones, zeros)), draw)
    builder.store(winner, builder.gep(winners, [done]))
    done.add_incoming(builder.add(done, ir.Constant(long, 1)), draw)
    builder.branch(step)

    builder.position_at_end(end)
