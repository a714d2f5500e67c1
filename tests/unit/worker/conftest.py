"""One thread for torch: pytest's own workers share the cores, and threads of OpenMP spin while they wait."""

import torch

torch.set_num_threads(1)
