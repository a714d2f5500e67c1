"""The ports that a run on one machine opens."""

import psutil
import pytest

from tests.faults.started import LAUNCHERS

_ARMS = [
    arm
    for arm in [*LAUNCHERS.values(), "manual:mode=shared_memory"]
    if arm != "horovod:controller=mpi"  # horovodrun chooses Open MPI's transports itself
]


@pytest.mark.faults
@pytest.mark.parametrize("arm", _ARMS)
def test_ranks_of_one_machine_listen_on_loopback_alone(start, arm):
    """Launchers listen on every address, and have no setting for that."""
    run = start(arm)
    run.wait_for_training()
    listening = [
        (connection.laddr.ip, connection.laddr.port)
        for number in (0, 1)
        for connection in run.rank(number).net_connections("inet")
        if connection.status in {psutil.CONN_LISTEN, psutil.CONN_NONE}
    ]
    assert [(ip, port) for ip, port in listening if ip not in {"127.0.0.1", "::1"}] == []
