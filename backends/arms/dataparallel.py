"""Register the arm ``dataparallel``, which trains by ``nn.DataParallel`` in one process."""

from backends.entry import Backend, Option

ARM = Backend(
    name="dataparallel",
    summary="torch.nn.DataParallel: one process, and a thread for each of its GPUs",
    group="backends.groups.none:NoGroup",
    strategy="backends.strategies.data_parallel:DataParallelReplica",
    code=("backends.strategies.data_parallel:DataParallelReplica.__init__",),
    options=(Option("gpus", 2, "number of GPUs; set it to the number of ranks on the first host", least=2),),
    not_on_cpus="without two GPUs, nn.DataParallel silently returns the plain module",
    only_named=True,
    one_process=True,
)
