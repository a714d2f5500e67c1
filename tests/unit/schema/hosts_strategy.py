"""Hosts for property tests."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st

from compare.schema.hosts import Host

# Nothing here is about time, and a busy machine is no failure.
untimed = settings(deadline=None)

NAMES = (
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}[a-z]", fullmatch=True)
    | st.ip_addresses(v=4).map(str)
    | st.ip_addresses(v=6).map(str)
)
USERS = st.just("") | st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,10}", fullmatch=True)


@st.composite
def hosts_of(draw, *, max_slots=True):
    slots = draw(st.integers(1, 64))
    limit = draw(st.none() | st.integers(slots, 128)) if max_slots else None
    return Host(draw(NAMES.filter(lambda name: name != "slots")), slots, draw(USERS), limit)


def lists_of(hosts):
    return st.lists(hosts, min_size=1, max_size=8, unique_by=lambda host: host.name.lower()).map(tuple)
