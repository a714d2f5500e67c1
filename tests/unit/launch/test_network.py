"""Test which interface and network the arms take."""

from __future__ import annotations

import pytest

from compare.errors import UsageError
from compare.launch.agent.protocol import Ready
from compare.launch.network import choose_network, in_network, network_of_one_machine, require_distinct
from compare.schema.hosts import Host, Network

N1 = {"lo": ["127.0.0.1/8"], "eth0": ["10.0.0.1/24"], "docker0": ["172.17.0.1/16"]}
N2 = {"lo": ["127.0.0.1/8"], "eth0": ["10.0.0.2/24"], "docker0": ["172.17.0.1/16"]}
TWO = [N1 | {"ib0": ["10.1.0.1/16"]}, N2 | {"ib0": ["10.1.0.2/16"]}]


def chosen(*hosts, asked=None, reached_at=None):
    addresses = {f"n{number}": its for number, its in enumerate(hosts, 1)}
    return choose_network(addresses, asked=asked, reached_at=reached_at or [""] * len(hosts))


def test_what_leads_nowhere_is_not_taken_and_an_address_is_in_its_network():
    found = chosen(N1, N2)
    assert found == Network(interface="eth0", network="10.0.0.0/24", addresses=("10.0.0.1", "10.0.0.2"))
    assert in_network("10.0.0.9/24", found)
    assert not in_network("10.0.1.9/24", found)


def test_of_two_networks_the_one_asked_for_or_reached_is_taken():
    assert chosen(*TWO, reached_at=["10.1.0.1", "10.1.0.2"]).interface == "ib0"
    assert chosen(*TWO, reached_at=["10.0.0.1", "10.0.0.2"]).interface == "eth0"
    assert chosen(*TWO, asked="ib0", reached_at=["10.0.0.1", "10.0.0.2"]).interface == "ib0"


@pytest.mark.parametrize(
    ("hosts", "asked", "what", "found"),
    [
        (TWO, None, "share more than one network", ["eth0", "ib0"]),
        *(([N1, N2], name, f"share no network on {name}", ["n2: "]) for name in ("lo", "docker0", "eth7")),
        ([N1, {"ens3": ["10.0.0.2/24"]}], None, "share no network", ["n1: ", "n2: "]),
    ],
)
def test_network_that_is_not_clear_is_asked_for(hosts, asked, what, found):
    with pytest.raises(UsageError, match=what) as caught:
        chosen(*hosts, asked=asked)
    assert [part for part in found if part not in caught.value.found] == []
    assert "interface=" in caught.value.remedy


def test_two_networks_of_one_interface_are_told_apart_by_addresses():
    hosts = [{"eth0": [f"10.0.0.{number}/24", f"10.1.0.{number}/24"]} for number in (1, 2)]
    with pytest.raises(UsageError, match="more than one network") as caught:
        chosen(*hosts, asked="eth0")
    assert caught.value.remedy.startswith("All are on one interface. Name the hosts by their addresses")
    assert chosen(*hosts, reached_at=["10.1.0.1", "10.1.0.2"]).network == "10.1.0.0/24"


def test_hosts_without_a_network_in_common_are_routed_to_each_other():
    cloud = chosen({"ens4": ["10.128.0.2/32"]}, {"ens4": ["10.128.0.3/32"]})
    expected = Network(interface="ens4", network="ens4", addresses=("10.128.0.2", "10.128.0.3"))
    assert cloud == expected
    assert in_network("10.128.0.9/32", cloud)


def test_network_of_one_machine_is_the_loopback_or_the_one_asked_for():
    assert network_of_one_machine(N1, asked=None) == Network(interface="lo")
    assert network_of_one_machine(N1, asked="eth0") == Network(interface="eth0")


def test_network_of_one_machine_without_the_interface_is_refused():
    with pytest.raises(UsageError, match="no interface lo that is up") as caught:
        network_of_one_machine({}, asked=None)
    assert caught.value.found == "Up: none."
    with pytest.raises(UsageError, match="no interface nope that is up") as caught:
        network_of_one_machine(N1, asked="nope")
    assert caught.value.found == "Up: lo, eth0, docker0."
    assert caught.value.remedy


def ready(hostname="node", **addresses):
    written = {"lo": ["127.0.0.1/8"]} | {name: [address] for name, address in addresses.items()}
    return Ready(hostname=hostname, version="1", addresses=written, memory_left_bytes=1 << 30)


def test_one_machine_under_two_names_is_refused_by_both():
    named = [Host("n1", 2, source="hosts:1"), Host("10.0.0.1", 1, source="hosts:2")]
    with pytest.raises(UsageError, match=r"hosts:2: 10\.0\.0\.1 is the same machine as n1") as caught:
        require_distinct([(host, ready(eth0="10.0.0.1/24")) for host in named])
    assert caught.value.remedy == "Name it once, with all its slots: 'n1 slots=3'."


def test_machines_with_some_address_in_common_are_two():
    first, second = Host("n1", 1), Host("n2", 1)
    require_distinct([(first, ready(docker0="172.17.0.1/16", eth0="10.0.0.1/24")),
                      (second, ready(docker0="172.17.0.1/16", eth0="10.0.0.2/24"))])  # fmt: skip
    containers = [(host, ready(host.name, eth0="172.17.0.2/16")) for host in (first, second)]
    require_distinct(containers)
    require_distinct([(first, ready()), (second, ready())])
