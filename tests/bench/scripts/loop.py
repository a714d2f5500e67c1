"""Measure the published loop, the product's, and its floor in one process."""

from __future__ import annotations

import sys
from functools import partial
from itertools import repeat
from types import SimpleNamespace

import torch

from backends.strategies.local import LocalReplica
from compare.schema.config import RunConfig
from compare.worker.loop import train
from compare.worker.mnist import PixelBatches, as_tensors, build_model, classify, optimizer_maker
from tests.bench.scripts import palindrome, published

ALONE = SimpleNamespace(rank=0, world_size=1)


def main(folder, out, seed, model, batch_size, steps, published_steps, palindromes):
    torch.set_num_threads(1)
    config = RunConfig(arms=(), ranks=1, model=model, batch_size_per_rank=int(batch_size))
    raw = published.training_set(folder)
    images, labels = as_tensors(*raw, torch.device("cpu"))
    resident = iter(PixelBatches(images, labels, (0, 1), config))
    # Both use one model and one buffer, because memory layout moved their ratio by some percent. The floor
    # reads the buffer as the last turn left it. Its labels belong to another batch, which takes as long.
    fixed = repeat(next(resident))
    replica = _replica(config)
    loader = published.endless(*raw, config.batch_size_per_rank)
    arms = {
        "published": partial(published.train, *_plain(config), loader),
        "resident": partial(train, replica, resident, classify),
        "floor": partial(train, replica, fixed, classify),
    }
    counts = {"published": int(published_steps), "resident": int(steps), "floor": int(steps)}
    palindrome.write(out, 0, palindrome.measure(arms, counts, int(palindromes), seed=seed))


def _plain(config):
    torch.manual_seed(0)
    model = build_model(config.model)
    return model, torch.optim.SGD(model.parameters(), config.learning_rate)


def _replica(config):
    torch.manual_seed(0)
    return LocalReplica(build_model(config.model), optimizer_maker(config), ALONE, {})


if __name__ == "__main__":
    main(*sys.argv[1:])
