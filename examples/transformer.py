"""A language model: tied embeddings, dropout, batches that are dictionaries.

``ringside run --workload examples/transformer.py:make`` trains it through every backend. ``larger`` has six
blocks of 0.8 million parameters each, so it shows what dividing a model among ranks saves.
"""

import torch
from torch import nn

from compare.workload import Workload

TOKENS, LENGTH = 64, 16


class Transformer(nn.Module):
    """Predict the next token, by ``blocks`` blocks of attention of this ``width``."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, width)
        self.places = nn.Parameter(torch.zeros(LENGTH, width))
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(block, blocks, enable_nested_tensor=False)
        self.head = nn.Linear(width, TOKENS, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map tokens, shape (batch, length), to logits, shape (batch, length, tokens)."""
        return self.head(self.layers(self.embedding(tokens) + self.places, mask=self.mask))


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the mean cross entropy of the next tokens."""
    logits = model(batch["tokens"])
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch["next"].flatten())


def make(width: int = 32, blocks: int = 2) -> Workload:
    """Return the workload: sequences that count in steps of their own."""
    starts, steps = torch.arange(TOKENS).repeat_interleave(8), torch.arange(1, 9).repeat(TOKENS)
    sequences = (starts[:, None] + steps[:, None] * torch.arange(LENGTH + 1)) % TOKENS
    data = [{"tokens": sequence[:-1], "next": sequence[1:]} for sequence in sequences]
    return Workload(
        model=Transformer(width, blocks),
        data=data,
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        before_step=lambda parameters: nn.utils.clip_grad_norm_(parameters, 1.0),
        schedule=lambda step: min(1.0, (step + 1) / 20),
    )


def larger() -> Workload:
    """Return the workload with a model of 4.8 million parameters."""
    return make(width=256, blocks=6)
