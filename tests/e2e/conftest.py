"""What the end-to-end tests need to be there."""

import pytest

from compare.availability import survey


@pytest.fixture(scope="session")
def every_backend():
    """Skip, with the reason, where one of the backends cannot run."""
    for name, found in survey().backends.items():
        if found.problem:
            pytest.skip(f"{name} is not available: {found.problem}")
