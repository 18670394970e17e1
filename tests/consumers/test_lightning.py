"""P62: Lightning trains on a plan, and its checkpoints resume it."""

import warnings

import pytest

from support.consumers import STOPS, Stopped, Trained, blocks, check, needed

needed("torch", "lightning")
pytestmark = pytest.mark.oracle


def model_of(step):
    """Return a model that passes its batches on."""
    import lightning
    import torch

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(()))

        def training_step(self, batch):
            step(batch)
            return self.weight * batch["loss_mask"].mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Model()


def fit(code, stop):
    """Run the block with a model that stops; return what it trained on."""
    step = Trained(stop)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exec(code, {"model": model_of(step)})
        except Stopped:
            assert stop is not None
    return step.batches


def test_the_block_of_the_page_reads_and_resumes(workdir, expected):
    (code,) = blocks("Lightning")
    check([fit(code, stop) for stop in STOPS], expected[0])
    # The whole plan has been read: a run that starts there has nothing to train on.
    assert fit(code, None) == []


def test_every_epoch_of_lightning_reads_the_whole_plan(workdir, expected):
    """A loader whose length was what was left ended resumed epochs early, and left the next ones empty."""
    (code,) = blocks("Lightning")
    code = code.replace("max_epochs=1", "max_epochs=2").replace("num_workers=1", "num_workers=0")
    check((fit(code, stop) for stop in (12, 25, None)), [*expected[0], *expected[0]])
