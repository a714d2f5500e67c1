"""Models that an arm trains as one process does."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.proof.case import right
from tests.proof.workloads.tasks import (
    WIDTH,
    Reader,
    cross_entropy,
    images,
    in_bfloat16,
    mlp,
    mse,
    rows,
    series,
    words,
    workload,
)


@right(
    *("ddp", "manual", "zero", "fsdp", "localsgd:period=1"),
    *(f"manual:mode={mode}" for mode in ("per_parameter", "overlap", "shared_memory", "ring")),
    origin="own",
)
def plain():
    """A small model without anything special."""
    return workload()


@right("ddp", origin="own")
def batch_norm():
    """Statistics of each rank's samples alone."""
    return workload(model=mlp(nn.BatchNorm1d(8)))


@right("ddp", "manual:mode=shared_memory", origin="own")
def dropout():
    """Random numbers of each rank's own."""
    return workload(model=mlp(nn.Dropout(0.5), hidden=16))


@right("manual", origin="own")
def norms_without_statistics():
    """GroupNorm after a convolution, LayerNorm before the head."""
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 2)
    )
    return workload(model=net, data=images(), loss=cross_entropy)


@right("manual", origin="a public report")
def frozen_base_with_low_rank_adapters():
    """Frozen weights with trained low-rank matrices, one of zeros."""
    return workload(model=Adapted())


class Adapted(nn.Module):
    """The small model, frozen, with low-rank matrices that are trained."""

    def __init__(self):
        super().__init__()
        self.base = mlp().requires_grad_(False)
        self.down = nn.Parameter(torch.randn(2, WIDTH))
        self.up = nn.Parameter(torch.zeros(WIDTH, 2))

    def forward(self, inputs):
        """Return one number a row."""
        return self.base(inputs + inputs @ self.down.T @ self.up.T)


@right("ddp", "manual", "zero", origin="pytorch-lightning#5355")
def tied_weights():
    """One matrix for the embedding and the output."""

    def next_word(model, batch):
        return nn.functional.cross_entropy(model(batch[0][:, :-1]), batch[0][:, -1])

    return workload(model=_Tied(), data=words(), loss=next_word)


class _Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 6)
        self.mix = nn.Linear(6, 6)
        self.out = nn.Linear(6, 20, bias=False)
        self.out.weight = self.words.weight

    def forward(self, chosen):
        return self.out(torch.tanh(self.mix(self.words(chosen).mean(1))))


@right("ddp", ends=("passed", "refused"), origin="pytorch#87497")
def sparse_embedding():
    """Gradients that hold the rows of a batch alone."""
    return workload(model=_Bag(), data=words())


@right("manual", ends=("passed", "refused"), names="sparse", origin="pytorch#87497")
def sparse_embedding_by_hand():
    """Sparse gradients in an arm that copies gradients."""
    return sparse_embedding()


class _Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.Embedding(20, 6, sparse=True)
        self.out = nn.Linear(6, 1)

    def forward(self, chosen):
        return self.out(self.bag(chosen).mean(1))


@right("ddp", origin="pytorch#158753", ends=("passed", "refused"))
def complex_weights():
    """A layer whose weights are complex numbers."""
    return workload(model=Spectral(), data=rows(width=8))


class Spectral(nn.Module):
    """Multiply the spectrum of a signal by complex weights."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, dtype=torch.cfloat) / 2)
        self.out = nn.Linear(8, 1)

    def forward(self, signal):
        """Return one number a signal."""
        return self.out(torch.tanh(torch.fft.irfft(torch.fft.rfft(signal) * self.weight, n=8)))


@right("ddp", "manual", "manual:mode=per_parameter", origin="pytorch#47163")
def channels_last():
    """Convolutions whose channels lie next to each other."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Conv2d(4, 4, 1), nn.Flatten(), nn.Linear(64, 2))
    return workload(model=net.to(memory_format=torch.channels_last), data=images(), loss=cross_entropy)


@right("ddp", "manual", "manual:mode=per_parameter", origin="pytorch#83909")
def transposed_parameter():
    """A parameter that is stored column by column."""
    net = mlp()
    net[0].weight = nn.Parameter(torch.randn(WIDTH, 8).t())
    return workload(model=net)


@right("manual", ends=("passed", "refused"), names=(), origin="pytorch#102981")
def old_weight_norm():
    """The older weight_norm, whose modules cannot be copied."""
    with torch.no_grad():
        net = mlp()
        nn.utils.weight_norm(net[0])
    return workload(model=net)


@right("manual", origin="descript-audio-codec#81")
def new_weight_norm():
    """Parametrised weight_norm."""
    net = mlp()
    for layer in (net[0], net[2]):
        nn.utils.parametrizations.weight_norm(layer)
    return workload(model=net)


@right("ddp", origin="a public report")
def spectral_norm():
    """Vectors in buffers that each forward changes."""
    net = mlp()
    nn.utils.parametrizations.spectral_norm(net[0])
    return workload(model=net)


@right("ddp", "manual", "manual:mode=overlap", origin="a public report")
def checkpoint_without_reentry():
    """Activations computed anew in backward."""
    return workload(model=_Checkpointed(use_reentrant=False))


@right("manual", "manual:mode=overlap", origin="a public report")
def checkpoint_with_reentry():
    """A backward inside backward."""
    return workload(model=_Checkpointed(use_reentrant=True))


class _Checkpointed(nn.Module):
    def __init__(self, *, use_reentrant):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(WIDTH, 8), nn.Linear(8, 8), nn.Linear(8, 1)
        self.use_reentrant = use_reentrant

    def forward(self, inputs):
        found = torch.tanh(self.first(inputs))
        again = checkpoint(lambda x: torch.tanh(self.middle(x)), found, use_reentrant=self.use_reentrant)
        return self.last(again)


@right("manual", origin="own")
def unequal_dtypes():
    """Parameters of float32 and of float64."""
    return workload(model=_Mixed())


class _Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 8), nn.Linear(8, 1).double()

    def forward(self, inputs):
        return self.last(torch.tanh(self.first(inputs)).double())


@right("ddp", "manual:mode=shared_memory", origin="open_clip#616")
def number_as_parameter():
    """A parameter without dimensions, as CLIP's scale."""
    return workload(model=mlp(_Scale()))


class _Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, inputs):
        return inputs * self.scale.exp()


@right(
    "ddp",
    origin="pytorch#22436",
    ends="refused",
    names="these parameters take no part in the loss on any rank: 0.unused.weight, 0.unused.bias",
)
@right("ddp:find_unused_parameters=true", origin="pytorch#22436")
def unused_layer():
    """A layer that takes no part in the loss."""
    net = mlp()
    net[0].unused = nn.Linear(3, 3)
    return workload(model=net)


@right("manual", origin="a public report")
def siamese():
    """A model that the loss calls twice."""

    def loss(model, batch):
        left, right = model(batch[0]), model(batch[0].flip(1))
        return (left - right).square().mean() + mse(model, batch)

    return workload(loss=loss)


@right("ddp", origin="pytorch#47562")
def gradient_penalty():
    """A second derivative in the loss."""

    def loss(model, batch):
        inputs = batch[0].detach().requires_grad_(requires_grad=True)
        with torch.enable_grad():
            slope = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)[0]
        return mse(model, batch) + (slope.norm(dim=1) - 1).square().mean()

    return workload(loss=loss)


@right("manual", "ddp", origin="own")
def recurrent():
    """A GRU over whole sequences."""
    return workload(model=Reader(), data=series())


@right("manual", origin="own")
def attention():
    """Attention between the steps of a sequence."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)
    return workload(model=nn.Sequential(layer, nn.Flatten(), nn.Linear(20, 1)), data=series())


@right("ddp", origin="own")
def autocast_inside_the_loss():
    """A forward pass in bfloat16, which the loss asks for."""
    return workload(loss=in_bfloat16)
