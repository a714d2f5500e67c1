"""Test the figures of a metered script."""

import msgspec
import pytest

from compare.analysis.metered import measure
from compare.errors import OutputError
from compare.schema.metered import METER_FILE, MeterSettings, read_metered
from compare.system.files import write_json
from tests.unit.metered import LOCAL, PHASES, a_block, a_metered, blocks_of_pairs


def test_measure_when_load_changes_between_pairs_finds_the_exposed_share():
    """Load makes both blocks of a pair slower, so the ratio within pairs keeps its small spread."""
    figures = measure(a_metered(exposed=4e-3))
    share = 1 - sum(LOCAL) / 2 / (max(LOCAL) + 4e-3)
    assert figures.exposed_share.low < share < figures.exposed_share.high
    assert figures.exposed_share.high - figures.exposed_share.low < 0.02
    assert figures.step_seconds.high - figures.step_seconds.low > 1e-3
    assert figures.exposed_seconds.mean == pytest.approx(share * figures.step_seconds.mean, rel=0.02)


def test_measure_exposed_holds_the_wait_for_the_slowest_rank():
    """The others wait for it while gradients are averaged, so an equal library costs more there."""
    even = measure(a_metered(local=(6e-3, 6e-3), exposed=1e-3))
    uneven = measure(a_metered(local=(6e-3, 8e-3), exposed=1e-3))
    assert uneven.exposed_seconds.mean - even.exposed_seconds.mean == pytest.approx(1e-3, rel=0.1)
    assert uneven.imbalance_seconds.mean == pytest.approx(1e-3, rel=0.1)


def test_measure_when_nothing_is_exposed_shows_no_cost():
    blocks = blocks_of_pairs(20, 0.0, (6e-3, 6e-3))
    assert not measure(a_metered(blocks=blocks)).shows_cost
    assert measure(a_metered(exposed=1e-3)).shows_cost


@pytest.mark.parametrize(("pairs", "has_interval"), [(1, False), (2, False), (3, True)])
def test_measure_with_two_pairs_or_fewer_shows_no_cost(pairs, has_interval):
    figures = measure(a_metered(pairs=pairs, exposed=9e-3))
    assert figures.has_interval is has_interval
    assert figures.shows_cost is has_interval


def test_measure_without_blocks_has_no_figures():
    figures = measure(a_metered(blocks=[]))
    assert (figures.step_seconds, figures.exposed_share, figures.overlap) == (None, None, None)
    assert (figures.ranks, figures.phases, figures.causes) == ([], [], [])


def test_measure_leaves_out_a_pair_with_a_discarded_block():
    blocks = blocks_of_pairs(4, 4e-3)
    blocks[0] = a_block("synchronised", 0, [1.0, 1.0], discarded="The script evaluated in its midst.")
    figures = measure(a_metered(blocks=blocks))
    assert figures.pairs == 3
    assert figures.step_seconds.high < 0.1


@pytest.mark.parametrize(
    ("isolated", "low", "high"), [(8e-3, 0.4, 0.6), (4.1e-3, -0.1, 0.1), (2e-3, -1.2, -0.9)]
)
def test_measure_overlap_is_the_share_of_collectives_that_is_hidden(isolated, low, high):
    """It is below zero where copying and waiting make the exposed time longer than the collectives."""
    blocks = blocks_of_pairs(20, 4e-3, (6e-3, 6e-3))
    blocks += [a_block("isolated", n, [isolated] * 2, steps=10) for n in range(4)]
    assert low < measure(a_metered(blocks=blocks)).overlap.mean < high


def test_measure_an_aa_test_has_the_ratio_and_no_cost():
    blocks = blocks_of_pairs(20, 0.0, (6e-3, 6e-3), other="aa")
    figures = measure(a_metered(blocks=blocks, settings=MeterSettings(aa=True)))
    assert figures.aa_ratio.low <= 1.001 <= figures.aa_ratio.high
    assert figures.exposed_seconds is None
    assert figures.ranks == []


def test_measure_names_the_rank_that_computes_longer():
    [cause] = measure(a_metered(local=(6e-3, 6e-3, 8e-3), exposed=1e-3)).causes
    assert cause.key == "straggler"
    assert (cause.evidence["rank"], cause.evidence["host"]) == (2, "localhost")
    assert cause.evidence["excess_seconds"] == pytest.approx(2e-3 * 2 / 3, rel=0.1)


def test_measure_when_the_slowest_rank_changes_names_no_straggler():
    blocks = []
    for pair in range(20):
        local = [6e-3, 6e-3]
        local[pair % 2] = 8e-3
        blocks += [a_block("synchronised", pair, [9e-3] * 2), a_block("local", pair, local)]
    figures = measure(a_metered(blocks=blocks))
    assert figures.causes == []
    assert figures.imbalance_seconds.low <= 0 <= figures.imbalance_seconds.high


def test_measure_when_collectives_outlast_computing_says_so():
    blocks = blocks_of_pairs(20, 9e-3, (6e-3, 6e-3))
    blocks += [a_block("isolated", n, [9e-3] * 2, steps=10) for n in range(4)]
    [cause] = measure(a_metered(blocks=blocks)).causes
    assert cause.key == "little_compute"
    assert cause.evidence["overlaps"]


def test_measure_phases_are_means_over_ranks_without_empty_ones():
    phases = [PHASES, PHASES | {"forward": 4e-3, "clipping": 0.0}]
    blocks = [a_block("phases", 0, [0.0, 0.0], phases=phases)]
    figures = measure(a_metered(blocks=blocks))
    assert [one.phase for one in figures.phases] == ["forward", "backward", "waiting", "optimizer", "outside"]
    assert figures.phases[0].seconds == pytest.approx(3e-3)
    assert figures.phases[0].rank_seconds == [2e-3, 4e-3]


@pytest.mark.parametrize(
    ("block", "says"),
    [
        (a_block("local", 0, [0.0, 1.0]), "A block took no time"),
        (a_block("local", 0, [1.0, 1.0], steps=0), "`int` >= 1"),
        (a_block("local", 0, [1.0]), "each of 2 ranks"),
        (a_block("phases", 0, [1.0, 1.0], phases=[PHASES]), "each of 2 ranks"),
        (a_block("local", 0, [1.0, 1.0], busy_seconds=[1.0, 1.0]), "each of 2 ranks"),
    ],
)
def test_a_record_without_the_numbers_for_figures_is_not_read(block, says, tmp_path):
    record = a_metered()
    record.blocks = [*record.blocks, block]
    write_json(tmp_path / METER_FILE, record)
    with pytest.raises(OutputError) as error:
        read_metered(tmp_path / METER_FILE)
    assert says in error.value.found


def test_a_record_without_its_first_rank_is_not_read(tmp_path):
    record = a_metered()
    record.ranks = record.ranks[1:]
    write_json(tmp_path / METER_FILE, record)
    with pytest.raises(OutputError, match="not a file that this version"):
        read_metered(tmp_path / METER_FILE)


def beside_others(cores, cpus=2):
    """Return a record whose ranks compute in three quarters of each block, while others use some cores."""
    metered = a_metered()
    return msgspec.structs.replace(
        metered,
        ranks=[msgspec.structs.replace(rank, cpus=list(range(cpus))) for rank in metered.ranks],
        blocks=[
            msgspec.structs.replace(
                block,
                cpu_seconds=[seconds * 3 / 4 for seconds in block.seconds],
                busy_seconds=[sum(block.seconds) * 3 / 4 + cores * seconds for seconds in block.seconds],
            )
            for block in metered.blocks
        ],
    )


@pytest.mark.parametrize(("cores", "is_noisy"), [(0.0, False), (0.1, False), (0.3, True)])
def test_blocks_beside_other_processes_are_noisy(cores, is_noisy):
    figures = measure(beside_others(cores))
    assert figures.other_load == pytest.approx(cores / 2, abs=1e-9)
    assert figures.is_noisy is is_noisy


def test_load_is_unknown_in_an_older_record():
    assert measure(a_metered()).other_load == 0
