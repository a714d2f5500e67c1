"""Models that an arm trains as one process does."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.proof.case import right
from tests.proof.workloads.tasks import (
    WIDTH,
    cross_entropy,
    images,
    mlp,
    mse,
    rows,
    series,
    sgd,
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
    return workload(model=nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1)))


@right("ddp", "manual:mode=shared_memory", origin="own")
def dropout():
    """Random numbers of each rank's own."""
    return workload(model=nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 1)))


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
    return workload(model=_Adapted(), optimizer=lambda p: sgd([q for q in p if q.requires_grad]))


class _Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = mlp().requires_grad_(False)
        self.down = nn.Parameter(torch.randn(2, WIDTH))
        self.up = nn.Parameter(torch.zeros(WIDTH, 2))

    def forward(self, inputs):
        return self.base(inputs + inputs @ self.down.T @ self.up.T)


@right("ddp", "manual", "zero", origin="pytorch-lightning#5355")
def tied_weights():
    """One matrix for the embedding and the output."""
    return workload(model=_Tied(), data=words(), loss=_next_word)


class _Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 6)
        self.mix = nn.Linear(6, 6)
        self.out = nn.Linear(6, 20, bias=False)
        self.out.weight = self.words.weight

    def forward(self, chosen):
        return self.out(torch.tanh(self.mix(self.words(chosen).mean(1))))


def _next_word(model, batch):
    return nn.functional.cross_entropy(model(batch[0][:, :-1]), batch[0][:, -1])


@right("ddp", ends=("passed", "refused"), origin="pytorch#87497")
def sparse_embedding():
    """Gradients that hold the rows of a batch alone."""
    return workload(model=_bag(), data=words())


@right("manual", ends=("passed", "refused"), names="sparse", origin="pytorch#87497")
def sparse_embedding_by_hand():
    """Sparse gradients in an arm that copies gradients."""
    return sparse_embedding()


def _bag():
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.Embedding(20, 6, sparse=True)
            self.out = nn.Linear(6, 1)

        def forward(self, chosen):
            return self.out(self.bag(chosen).mean(1))

    return Bag()


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
    return workload(model=_Transposed())


class _Transposed(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(8, WIDTH).t())
        self.out = nn.Linear(8, 1)

    def forward(self, inputs):
        return self.out(torch.tanh(inputs @ self.table))


@right("manual", ends=("passed", "refused"), names=(), origin="pytorch#102981")
def old_weight_norm():
    """The older weight_norm, whose modules cannot be copied."""
    with torch.no_grad():
        net = nn.Sequential(nn.utils.weight_norm(nn.Linear(WIDTH, 8)), nn.Tanh(), nn.Linear(8, 1))
    return workload(model=net)


@right("manual", origin="descript-audio-codec#81")
def new_weight_norm():
    """Parametrised weight_norm."""
    norm = nn.utils.parametrizations.weight_norm
    return workload(model=nn.Sequential(norm(nn.Linear(WIDTH, 8)), nn.Tanh(), norm(nn.Linear(8, 1))))


@right("ddp", origin="a public report")
def spectral_norm():
    """Vectors in buffers that each forward changes."""
    norm = nn.utils.parametrizations.spectral_norm
    return workload(model=nn.Sequential(norm(nn.Linear(WIDTH, 8)), nn.Tanh(), nn.Linear(8, 1)))


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
    return workload(model=_Scaled())


class _Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.scale = mlp(), nn.Parameter(torch.tensor(0.7))

    def forward(self, inputs):
        return self.net(inputs) * self.scale.exp()


@right("ddp:find_unused_parameters=true", origin="pytorch#22436")
def unused_layer():
    """A layer that takes no part in the loss."""
    return workload(model=_WithUnused())


class _WithUnused(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.unused = mlp(), nn.Linear(3, 3)

    def forward(self, inputs):
        return self.net(inputs)


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
    return workload(model=_Recurrent(), data=series())


class _Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 1)

    def forward(self, inputs):
        return self.out(self.rnn(inputs)[1][-1])


@right("manual", origin="own")
def attention():
    """Attention between the steps of a sequence."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)
    return workload(model=nn.Sequential(layer, nn.Flatten(), nn.Linear(20, 1)), data=series())


@right("ddp", origin="own")
def autocast_inside_the_loss():
    """A forward pass in bfloat16, which the loss asks for."""

    def loss(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            found = model(batch[0])
        return nn.functional.mse_loss(found.to(batch[1].dtype), batch[1])

    return workload(loss=loss)
