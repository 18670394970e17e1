"""The slow twins: a dozen plain lines for each thing, written from the definitions."""

import random


class Twister:
    """The 32-bit Mersenne Twister as published, seeded by ``init_genrand``."""

    def __init__(self, seed):
        self.state = [seed & 0xFFFFFFFF]
        for number in range(1, 624):
            last = self.state[-1]
            self.state.append((1812433253 * (last ^ last >> 30) + number) & 0xFFFFFFFF)
        self.used = 624

    def word(self):
        if self.used == 624:
            self._generate()
        word = self.state[self.used]
        self.used += 1
        word ^= word >> 11
        word ^= word << 7 & 0x9D2C5680
        word ^= word << 15 & 0xEFC60000
        return word ^ word >> 18

    def _generate(self):
        state = self.state
        for number in range(624):
            joined = state[number] & 0x80000000 | state[(number + 1) % 624] & 0x7FFFFFFF
            state[number] = state[(number + 397) % 624] ^ joined >> 1 ^ (0x9908B0DF if joined & 1 else 0)
        self.used = 0


def forward_swaps(length, seed):
    words, result = Twister(seed), list(range(length))
    for i in range(length - 1):
        j = i + words.word() % (length - i)
        result[i], result[j] = result[j], result[i]
    return result


def inside_out(length, seed):
    words, result = Twister(seed), []
    for i in range(length):
        high = words.word()
        j = (high << 32 | words.word()) % (i + 1)
        result.append(i)
        result[i] = result[j]
        result[j] = i
    return result


def single_sampler(total, consumed, size, rank, ranks):
    """Micro-batches of Megatron's pre-training sampler."""
    batch, batches = [], []
    for index in range(consumed, total):
        batch.append(index)
        if len(batch) == size * ranks:
            batches.append(batch[rank * size : (rank + 1) * size])
            batch = []
    return batches


def cyclic_sampler(total, consumed, size, rank, ranks, sharded, truncated=False):
    """Micro-batches that Megatron's random sampler yields until its epoch ends."""
    group = size * ranks
    active = total - total % group
    epoch, offset = divmod(consumed, active)
    assert offset % group == 0
    if sharded:
        bucket = total // group * size
        mine = [rank * bucket + place for place in forward_swaps(bucket, epoch)[offset // ranks :]]
    else:
        everything = forward_swaps(total // size * size, epoch)
        if truncated:
            everything = everything[:active]
        mine = everything[offset:][rank::ranks]
    return [mine[at : at + size] for at in range(0, len(mine) - size + 1, size)]


def windowed(samples, block, window, permute_blocks, permute_samples):
    """Ids of the windowed shuffle; the last block may be short, and windows are cut from what it leaves."""
    blocks = [range(first, min(first + block, samples)) for first in range(0, samples, block)]
    ids = [sample for chosen in permute_blocks(blocks) for sample in chosen]
    size = min(block * window, samples)
    windows = [ids[first : first + size] for first in range(0, samples, size)]
    return [sample for number, part in enumerate(windows) for sample in permute_samples(part, number)]


def bucketed(keys, pack, order):
    """Return whether an order of places is sorted by key but for packs and the members of packs."""
    packs = [sorted(keys[place] for place in order[at : at + pack]) for at in range(0, len(order), pack)]
    whole = len(order) // pack
    return [key for members in sorted(packs[:whole]) + packs[whole:] for key in members] == sorted(
        keys[place] for place in order
    )


def random_worlds(count, seed, limit=8):
    """Yield (random generator, total, micro batch size, ranks) of small worlds that have a batch."""
    generator = random.Random(seed)
    for _ in range(count):
        size, ranks = generator.randint(1, 5), generator.randint(1, limit)
        yield generator, generator.randint(size * ranks, size * ranks * 10 + 7), size, ranks
