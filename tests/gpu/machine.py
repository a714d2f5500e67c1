"""Print the GPU's driver, clocks and libraries, and what NCCL chooses."""

from __future__ import annotations

import os
import subprocess
import sys

import torch

QUERY = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,memory.total,persistence_mode"


def main():
    print(f"Python {sys.version.split()[0]}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    print(f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}")
    subprocess.run(["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv"], check=True)
    subprocess.run(["nvidia-smi", "topo", "-m"], check=False)
    sys.stdout.flush()
    debug = os.environ | {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,TUNING,COLL"}
    ranks = str(torch.cuda.device_count())
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    sys.exit(subprocess.run([*command, "-m", "tests.gpu.chosen"], env=debug, check=False).returncode)


if __name__ == "__main__":
    main()
