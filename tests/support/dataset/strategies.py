"""Datasets for property tests."""

from hypothesis import strategies as st

from support.dataset.twin import Plain

RANGES = {
    "uint8": (0, 2**8 - 1),
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint16": (0, 2**16 - 1),
}


@st.composite
def data_sets(draw, dtype=None, multimodal=None):
    name = dtype or draw(st.sampled_from(sorted(RANGES)))
    token = st.integers(*RANGES[name])
    documents = draw(st.lists(st.lists(st.lists(token, max_size=5), max_size=3), max_size=7))
    count = sum(map(len, documents))
    modes = None
    if multimodal if multimodal is not None else draw(st.booleans()):
        modes = draw(st.lists(st.integers(-128, 127), min_size=count, max_size=count))
    return Plain(name, documents, modes)
