"""Test which interface and network the arms take."""

from __future__ import annotations

import pytest

from compare.errors import UsageError
from compare.launch.agent.protocol import Ready
from compare.launch.network import choose_network, in_network, network_of_one, require_distinct
from compare.schema.hosts import Host, Network

N1 = {"lo": ["127.0.0.1/8"], "eth0": ["10.0.0.1/24"], "docker0": ["172.17.0.1/16"]}
N2 = {"lo": ["127.0.0.1/8"], "eth0": ["10.0.0.2/24"], "docker0": ["172.17.0.1/16"]}


def chosen(*hosts, asked=None, reached_at=None):
    addresses = {f"n{number}": its for number, its in enumerate(hosts, 1)}
    return choose_network(addresses, asked=asked, reached_at=reached_at or [""] * len(hosts))


def test_what_leads_nowhere_is_not_taken():
    expected = Network(interface="eth0", network="10.0.0.0/24", addresses=("10.0.0.1", "10.0.0.2"))
    assert chosen(N1, N2) == expected


def test_of_two_networks_the_one_over_which_hosts_are_reached_is_taken():
    first, second = N1 | {"ib0": ["10.1.0.1/16"]}, N2 | {"ib0": ["10.1.0.2/16"]}
    assert chosen(first, second, reached_at=["10.1.0.1", "10.1.0.2"]).interface == "ib0"
    assert chosen(first, second, reached_at=["10.0.0.1", "10.0.0.2"]).interface == "eth0"
    assert chosen(first, second, asked="ib0", reached_at=["10.0.0.1", "10.0.0.2"]).interface == "ib0"


def test_choose_network_two_that_are_alike_ask_the_user():
    first, second = N1 | {"ib0": ["10.1.0.1/16"]}, N2 | {"ib0": ["10.1.0.2/16"]}
    with pytest.raises(UsageError, match="more than one network") as caught:
        chosen(first, second)
    assert "eth0" in caught.value.found
    assert "ib0" in caught.value.found
    assert "--interface" in caught.value.remedy


@pytest.mark.parametrize("asked", ["lo", "docker0", "eth7"])
def test_an_interface_that_hosts_do_not_share_is_refused(asked):
    with pytest.raises(UsageError, match=f"{asked} is no interface that all hosts share") as caught:
        chosen(N1, N2, asked=asked)
    assert "n2: " in caught.value.found


def test_hosts_whose_interfaces_have_other_names_share_none():
    with pytest.raises(UsageError, match="share no network"):
        chosen(N1, {"ens3": ["10.0.0.2/24"]})


def test_hosts_without_a_network_in_common_are_routed_to_each_other():
    cloud = chosen({"ens4": ["10.128.0.2/32"]}, {"ens4": ["10.128.0.3/32"]})
    expected = Network(interface="ens4", network="ens4", addresses=("10.128.0.2", "10.128.0.3"))
    assert cloud == expected
    assert in_network("10.128.0.9/32", cloud)


def test_an_address_is_in_its_network_and_in_no_other():
    assert in_network("10.0.0.9/24", chosen(N1, N2))
    assert not in_network("10.0.1.9/24", chosen(N1, N2))


def test_network_of_one_machine_is_the_loopback_or_the_one_asked_for():
    assert network_of_one(N1, asked=None) == Network(interface="lo")
    assert network_of_one(N1, asked="eth0") == Network(interface="eth0")


def test_network_of_one_machine_without_loopback_is_refused():
    with pytest.raises(UsageError, match="The loopback interface lo is not up") as caught:
        network_of_one({}, asked=None)
    assert caught.value.found == "Up: none."


def test_network_of_one_machine_without_the_interface_is_refused():
    with pytest.raises(UsageError, match="--interface nope") as caught:
        network_of_one(N1, asked="nope")
    assert "lo" in caught.value.found
    assert caught.value.remedy


def ready(hostname="node", **addresses):
    written = {"lo": ["127.0.0.1/8"]} | {name: [address] for name, address in addresses.items()}
    return Ready(hostname=hostname, python="3.11", version="1", addresses=written, memory_left_bytes=1 << 30)


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
