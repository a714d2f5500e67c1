"""Write the warnings about an MPI library that may not copy directly between two ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

Attested: TypeAlias = Mapping[str, Iterable[Mapping[str, Any]]]
"""What each rank attests, by the label of its arm or the name of its group."""
_OPEN_MPI = "OMPI_MCA_btl_vader_single_copy_mechanism", "none"
_MPICH = "MPIR_CVAR_CH4_CMA_ENABLE", "0"
"""Environment variables and their values that make Open MPI and MPICH copy twice, through shared memory."""
_MEANS = {
    "CMA": "large messages fail at first, and are then copied in parts",
    "none": "large messages are copied twice and not once",
    "unknown": "large messages may fail at first, and be copied twice",
}
"""What a refusal does to large messages, by the copy mechanism that the library reports."""


def refused_copies(attested: Attested) -> list[str]:
    """Return a warning for each reason why ranks cannot read each other's memory, with their arms or groups.

    Ranks whose settings ask for two copies are left out, because they need no such read.
    """
    found: dict[tuple[str, str, tuple[str, str]], list[str]] = {}
    for label, ranks in attested.items():
        for refusal in dict.fromkeys(filter(None, map(_refusal, ranks))):
            found.setdefault(refusal, []).append(label)
    return [
        f"{', '.join(labels)}: {means}, because this host refuses process_vm_readv ({reason}). So these "
        "times are not those of MPI where the call is allowed. Allow it: --cap-add=SYS_PTRACE for a "
        f"container, kernel.yama.ptrace_scope=0 for a host. Or ask for copies: {'='.join(setting)}"
        for (reason, means, setting), labels in found.items()
    ]


def _refusal(attestation: Mapping[str, Any]) -> tuple[str, str, tuple[str, str]] | None:
    """Return why reads are refused, what that means for messages, and the setting that avoids it.

    None if nothing is refused, if the setting is chosen already, or if the mechanism is not known.
    """
    group, environment = attestation.get("group"), attestation.get("environment")
    if not isinstance(group, dict) or not (reason := group.get("memory_reads_refused")):
        return None
    setting = _MPICH if "MPICH" in str(group.get("library")) else _OPEN_MPI
    chosen = isinstance(environment, dict) and environment.get(setting[0]) == setting[1]
    means = _MEANS.get(str(group.get("single_copy")))
    return None if chosen or means is None else (str(reason), means, setting)
