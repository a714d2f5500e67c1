"""Choose the environment variables of a launch.

Launchers copy their environment into ssh command lines and logs. So a launch inherits only the variables that
this module lists, and a token in the user's shell stays in the shell. Ringside sets further variables, with
the same values for every arm.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from compare import PACKAGE_ROOT
from compare.errors import UsageError

MASK = "***"
"""The text that is shown in place of a value that only the ranks may see."""
EXPORTED = "RINGSIDE_EXPORTED"
"""Name of the variable that holds the path of the file with the values of ``-x``.

The values are in a file because they must not be logged.
"""

_NAMES = {
    *("HOME", "LANG", "LD_LIBRARY_PATH", "LD_PRELOAD", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ"),
    *("USER", "PYTHONPATH", "VIRTUAL_ENV", "XDG_CACHE_HOME"),
}
# No prefix of a scheduler is here, because its variables would change what mpirun starts, and where.
_PREFIXES = (
    *("CUBLAS_", "CUDA_", "CUDNN_", "FI_", "GLOO_", "GOMP_", "HOROVOD_", "KMP_", "LC_", "MALLOC_", "MKL_"),
    *("MPIR_CVAR_", "NCCL_", "NVIDIA_", "OMPI_MCA_", "OMP_", "PYTORCH_", "TORCH_", "UCX_"),
)
# Variables that describe one launch: its host, its parent or its installation. They are no library settings.
_PREFIXES_OF_ONE_LAUNCH = (
    *("OMPI_MCA_ess", "OMPI_MCA_initial_wdir", "OMPI_MCA_orte_", "OMPI_MCA_plm_", "OMPI_MCA_pmix"),
    "OMPI_MCA_shmem_RUNTIME",
    *("HOROVOD_CROSS_", "HOROVOD_GLOO_", "HOROVOD_HOSTNAME", "HOROVOD_LOCAL_", "HOROVOD_RANK"),
    *("HOROVOD_SIZE", "OMPI_MCA_btl_vader_backing_directory", "LC_"),
)
# Variables that describe a container image, or state which GPUs it may use. No library reads them.
_NAMES_OF_AN_IMAGE = re.compile(
    r"NVIDIA_(?!TF32_OVERRIDE$).*|(CUDA|CUDNN|CUBLAS|NCCL|PYTORCH|TORCH|UCX)_VERSION|PYTORCH_BUILD_.*"
    r"|TORCH_CUDA_ARCH_LIST"
)
# Names of secrets. Some begin like a setting: NVIDIA_API_KEY, SLURM_JWT.
_SECRET_NAME = re.compile(
    r"API_?KEY|(^|_)(KEYS?|DSN|OTP|PAT|PW|SALT)(_|$)|AUTH|BEARER|COOKIE|CRED(ENTIAL|S?(_|$))|JWT"
    r"|PASS(CODE|W|PHRASE|_|$)|PRIVATE|PWD(_|$)|SECRET|SESSION(_?(ID|KEY|TOKEN)|$)|SIGNATURE|TOKEN|WEBHOOK",
    re.IGNORECASE,
)
# Values that are secrets under any name: a proxy's password, or a token of GitHub, Hugging Face or others.
_SECRET_VALUE = re.compile(
    r"://[^/\s@]*:[^/\s@]+@|\b(gh[opsru]_|github_pat_|glpat-|hf_|sk-|xox[a-z]-|AKIA|ASIA)[A-Za-z0-9_-]{10}"
    r"|\beyJ[A-Za-z0-9_-]+\.|\bBearer\s|-----BEGIN ",
)
# The arm or the run decides these, so values from the user's shell would contradict it. Some crash Horovod.
_NAMES_SET_BY_ARM = {
    *("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS", "HOROVOD_RANK", "HOROVOD_SIZE"),
    *("OMP_PROC_BIND", "OMP_PLACES", "OMP_THREAD_LIMIT", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"),
    *("HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE"),
}


# Patterns of settings, each with the libraries that read them; every library may read any other setting.
# Ranks attest the libraries by names that contain these. The logs and checks of torch.distributed cost time
# only in Gloo and NCCL.
_LIBRARIES_BY_SETTING = (
    (r"HOROVOD_", ("horovod",)),
    (r"NCCL_", ("nccl",)),
    (r"GLOO_", ("gloo",)),
    (r"OMPI_MCA_", (" mpi ",)),
    (r"MPIR_CVAR_", ("mpich",)),
    (r"(UCX|FI)_", ("mpi",)),
    (r"TORCH_(DISTRIBUTED|NCCL|GLOO|FR|CPP_LOG_LEVEL)", ("torch.distributed",)),
    (r"TORCH_LOGS=.*(dist|ddp|fsdp|c10d)", ("torch.distributed",)),
)


def readers_of(name: str, value: str) -> tuple[str, ...]:
    """Return parts of the names of the libraries that read a setting; empty if any library may read it.

    The setting is the variable ``name`` with ``value``.
    """
    setting = f"{name}={value}"
    return next((readers for pattern, readers in _LIBRARIES_BY_SETTING if re.match(pattern, setting)), ())


# The variables that an arm may set. Only Open MPI's parameters have small letters.
_SETTING = re.compile(r"[A-Z][A-Z0-9_]*|OMPI_MCA_[a-z0-9_]+")
# Launchers set these for every rank, or Ringside sets them for every launch. An arm with another value could
# not be compared, or would not start.
_NAMES_SET_BY_LAUNCH = re.compile(
    r"RINGSIDE_.*|PYTHON.*|(LOCAL_|GROUP_|ROLE_|GROUP_WORLD_|LOCAL_WORLD_|ROLE_WORLD_|WORLD_)?(RANK|SIZE)"
    r"|MASTER_(ADDR|PORT)|TORCHELASTIC_.*|OMPI_COMM_WORLD_.*|PMIX?_.*|PRTE_.*|MPI_LOCAL.*|MPI4PY_.*|HYDRA_.*"
    r"|HOROVOD_(GLOO|CROSS|HOSTNAME).*"
    r"|OMPI_MCA_(btl_vader_backing_directory|(oob|btl)_tcp_if_include|mpi_yield_when_idle|hwloc_base_binding.*)"
    r"|HOME|LOGNAME|PATH|SHELL|TMPDIR|USER|VIRTUAL_ENV|CUDA_VISIBLE_DEVICES|SLURM_.*"
)


def refusal_of(name: str, *, may_be_secret: bool = False, of_script: bool = False) -> str:
    """Return a clause that states why users may not set a variable; empty if they may.

    With ``may_be_secret``, names of secrets are allowed, because the value is neither printed nor saved. With
    ``of_script``, so is what Ringside sets for arms, because it sets nothing for a script of the user's.
    """
    if not _SETTING.fullmatch(name):
        return "a name consists of capital letters, digits and underscores, and begins with a letter"
    if _SECRET_NAME.search(name) and not may_be_secret:
        return "its name looks like a secret, and an arm's settings are printed and saved"
    if of_script:
        return "the launcher sets it" if _NAMES_SET_BY_LAUNCH.fullmatch(name) else ""
    of_all_arms = launch_settings(threads=1, interface="lo", executables=Path())
    if name in of_all_arms or name in _NAMES_SET_BY_ARM or _NAMES_SET_BY_LAUNCH.fullmatch(name):
        return "Ringside or its launcher sets it, the same for every arm"
    return ""


def inherited_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``environ`` that a launch may inherit; secrets are not among them."""
    return {
        name: value
        for name, value in environ.items()
        if (name in _NAMES or (name.startswith(_PREFIXES) and not _is_secret(name, value)))
        and name not in _NAMES_SET_BY_ARM
    }


def library_settings(environ: Mapping[str, str], *, hidden: Collection[str] = ()) -> dict[str, str]:
    """Return the variables of ``environ`` that are settings of libraries, sorted by name.

    Secrets are left out, and so are variables that describe one launch or a container image. The values of
    the variables named in ``hidden`` are replaced by ``MASK``.
    """
    return {
        name: MASK if name in hidden else value
        for name, value in sorted(environ.items())
        if (name.startswith(_PREFIXES) or name == "LD_PRELOAD")
        and not name.startswith(_PREFIXES_OF_ONE_LAUNCH)
        and not _NAMES_OF_AN_IMAGE.fullmatch(name)
        and not _is_secret(name, value)
    }


def _is_secret(name: str, value: str) -> bool:
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))


def launch_settings(
    *, threads: int, interface: str, executables: Path, sources: Path = PACKAGE_ROOT
) -> dict[str, str]:
    """Return the variables that Ringside sets for every rank of every arm.

    ``threads`` is the number of a rank's threads. It is set because the launchers' defaults differ: torchrun
    sets one OpenMP thread, and horovodrun allows one for each core. ``interface`` is the network interface.
    ``executables`` is the folder of the launchers, which is added to PATH because horovodrun looks there for
    mpirun. ``sources`` is the folder of the worker's code.
    """
    return {
        "PATH": os.pathsep.join([str(executables), os.environ.get("PATH", os.defpath)]),
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        # Without these two, every step maps and unmaps large gradients, with a page fault for each 4 KiB.
        "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
        "MALLOC_TRIM_THRESHOLD_": str(16 << 30),
        "GLOO_SOCKET_IFNAME": interface,
        # Without the sign, eth1 would also mean eth10.
        "NCCL_SOCKET_IFNAME": f"={interface}",
        "PYTHONPATH": import_path(os.environ, sources),
        # The working folder may hold another package called `backends`.
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
    }


def import_path(environ: Mapping[str, str], sources: Path = PACKAGE_ROOT) -> str:
    """Return a PYTHONPATH that has the folder ``sources`` first, and then the PYTHONPATH in ``environ``.

    Raises:
        UsageError: the path of the folder contains a colon, which separates folders in PYTHONPATH.
    """
    root = str(sources)
    if os.pathsep in root:
        raise UsageError(
            f"Ringside cannot run from {root}.",
            found=f"PYTHONPATH cannot hold a path with {os.pathsep!r}.",
            remedy=f"Move Ringside to a folder whose path has no {os.pathsep!r}.",
        )
    return os.pathsep.join(filter(None, [root, environ.get("PYTHONPATH", "")]))


_PREFIXES_READ_AT_START = ("LD_", "MALLOC_", "GLIBC_", "PYTHON")
# Short flags can be joined, as in -vx NAME=VALUE or -vxNAME=VALUE, and --env can be cut: --en NAME=VALUE.
_EXPORT = re.compile(r"-[A-Za-z]*x|--e(?:nv?)?")
_EXPORT_IN_ONE_WORD = re.compile(r"(-[A-Za-z]*x|--e(?:nv?)?=)([^-].*)", re.DOTALL)


def read_env_flags(
    texts: Sequence[str], environ: Mapping[str, str], *, of_script: bool = False
) -> dict[str, str]:
    """Return the variables that the user sets by ``-x NAME=VALUE`` or ``-x NAME``, by name.

    ``texts`` are the values of the flag. Without a value, a variable gets its value in ``environ``. With
    ``of_script``, the variables are for a script of the user's and not for an arm.

    Raises:
        UsageError: a variable cannot be set by ``-x``, or has no value in either place.
    """
    exported = {}
    for text in texts:
        name, given, value = text.partition("=")
        reason = refusal_of(name, may_be_secret=True, of_script=of_script)
        remedy = "Name another variable, or leave it out."
        if not reason and name.startswith(_PREFIXES_READ_AT_START):
            reason = "processes read it when they start, which is before a rank receives the values of -x"
            remedy = f"Set it for an arm, where it is printed and saved: --backend ddp:env.{name}=VALUE"
        if reason:
            found = f"{reason[0].upper()}{reason[1:]}."
            raise UsageError(f"-x {name} cannot be set.", found=found, remedy=remedy)
        if not given and name not in environ:
            raise UsageError(
                f"-x {name}: your shell does not export this variable.",
                remedy=f"Export it, or give its value: -x {name}=VALUE",
            )
        exported[name] = value if given else environ[name]
    return exported


def hide_exports(words: Sequence[str]) -> list[str]:
    """Return a command line with ``MASK`` in place of every value of ``-x``, however the flag is written."""
    hidden = []
    for before, word in itertools.pairwise(["", *words]):
        flag, value = _EXPORT_IN_ONE_WORD.fullmatch(word), _EXPORT.fullmatch(before)
        name, given, _ = (flag[2] if flag else word).partition("=")
        has_value = (flag or value) and given
        hidden.append(f"{flag[1] if flag else ''}{name}={MASK}" if has_value else word)
    return hidden
