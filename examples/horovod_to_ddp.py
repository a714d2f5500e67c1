"""One training, under Horovod and under DDP: the migration of docs/tutorials/from-horovod.md."""

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from compare.workload import Workload

CLASSES = 10


def _images() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    classes = torch.randint(CLASSES, (2048,), generator=generator)
    templates = torch.randn(CLASSES, 1, 16, 16, generator=generator)
    noise = torch.randn(len(classes), 1, 16, 16, generator=generator)
    return TensorDataset(templates[classes] + noise, classes)


def _model() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(32 * 6 * 6, 128), nn.ReLU(), nn.Linear(128, CLASSES)),
    )


def _loss(model, batch):
    images, classes = batch
    return nn.functional.cross_entropy(model(images), classes)


def _loader(rank, ranks, batch_size):
    """Give each rank its share of the samples, as both versions do."""
    images = _images()
    return DataLoader(images, batch_size, sampler=DistributedSampler(images, ranks, rank))


def _horovod_step(model, make_optimizer):
    import horovod.torch as hvd

    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        make_optimizer(model.parameters()), named_parameters=model.named_parameters()
    )

    def step(batch):
        optimizer.zero_grad()
        _loss(model, batch).backward()
        optimizer.step()

    return step


def _ddp_step(model, make_optimizer):
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = make_optimizer(wrapped.parameters())

    def step(batch):
        optimizer.zero_grad()
        _loss(wrapped, batch).backward()
        optimizer.step()

    return step


def _hasty_step(model, make_optimizer):
    """Average by hand, and forget that all_reduce sums while Horovod averages."""
    optimizer = make_optimizer(model.parameters())

    def step(batch):
        optimizer.zero_grad()
        _loss(model, batch).backward()
        for parameter in model.parameters():
            torch.distributed.all_reduce(parameter.grad)
        optimizer.step()

    return step


def _workload(own_step) -> Workload:
    return Workload(
        model=_model(),
        data=_images(),
        loss=_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9),
        loader=_loader,
        own_step=own_step,
    )


def horovod() -> Workload:
    """Return the training as it was."""
    return _workload(_horovod_step)


def ddp() -> Workload:
    """Return the training after the migration."""
    return _workload(_ddp_step)


def hasty() -> Workload:
    """Return a migration with a mistake."""
    return _workload(_hasty_step)
