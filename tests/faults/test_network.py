"""The ports that a run on one machine opens."""

import psutil
import pytest


@pytest.mark.faults
@pytest.mark.parametrize(
    "arms",
    [
        "ddp,horovod,mpi",  # horovodrun chooses Open MPI's transports itself, so it is not among them
        pytest.param("ddp,manual:mode=shared_memory", marks=pytest.mark.rest),
    ],
)
def test_ranks_of_one_machine_listen_on_loopback_alone(start, arms):
    """Launchers listen on every address, and have no setting for that."""
    run = start(arms, "--interleave", "blocks")
    for launch in range(1, len(arms.split(",")) + 1):
        run.wait_for_training(launch)
        listening = [
            (connection.laddr.ip, connection.laddr.port)
            for number in (0, 1)
            for connection in run.rank(number, launch).net_connections("inet")
            if connection.status in {psutil.CONN_LISTEN, psutil.CONN_NONE}
        ]
        assert [(ip, port) for ip, port in listening if ip not in {"127.0.0.1", "::1"}] == []
