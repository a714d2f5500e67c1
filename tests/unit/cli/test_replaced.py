"""Commands and flags of earlier versions are answered with the new command line."""

import shlex

import pytest

from compare.cli import main as cli
from compare.cli.replaced import spell_anew
from compare.errors import UsageError


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("aa --backend ddp", "run --backend ddp,ddp"),
        ("aa --backend mpi --comparisons 4 --steps 300", "run --backend mpi,mpi --steps 300 --repeats 20"),
        ("aa --comparisons many", "run --backend ddp,ddp"),
        ("explain last", "report last --format lesson"),
        ("explain last --arm ddp --format markdown", "report last --arm ddp --format lesson --export -.md"),
        ("history", "report"),
        ("history runs --json", "report runs --format json"),
        ("diff a b --force --export-markdown d.md", "report a b --export d.md"),
        ("data fetch --data-dir d", "setup data --data d"),
        ("data status", "setup data --check"),
        ("install horovod --force", "setup horovod --force"),
        (
            "rehearse --hosts 4 --link=1gbit,2ms -- run --backend ddp",
            "run --engine rehearsal:hosts=4,rate=1gbit,latency=2ms --backend ddp",
        ),
        ("install", "setup"),
        ("data", "setup"),
        ("rehearse doctor", "doctor --engine rehearsal"),
        ("rehearse --hosts 2", "run --engine rehearsal:hosts=2"),
        ("submit -- aa --backend ddp", "submit -- run --backend ddp,ddp"),
        ("report last --wide --sort name --output 'a b.md'", "report last --detail --export 'a b.md'"),
        ("report a b --format html --output both", "report a b --export both.html"),
        ("run --epochs 2 --warmup 10", "run --steps 2epochs:warmup=10"),
        ("run --steps 60 --warmup 10", "run --steps 60:warmup=10"),
        ("run --warmup=10", "run --steps 1epoch:warmup=10"),
        ("gate --warmup 10", "gate --steps 150:warmup=10"),
        ("run --optimizer adam --lr 0.1", "run --optimizer adam:lr=0.1"),
        ("run --lr 0.1 --stall 60", "run --optimizer sgd:lr=0.1 --timeout 5m:stall=60"),
        ("run --data_dir d --dataset auto", "run --data d"),
        ("run --dataset digits", "run --data digits"),
        ("run --dataset digits --data-dir d", "run --data digits:folder=d"),
        (
            "run --export-json - --export-csv - --export-html a.htm",
            "run --export - --export -.csv --export a.htm.html",
        ),
        ("gate --export-junit gate.xml", "gate --export gate.xml"),
        ("run --nproc-per-node 2 --wide --config x.toml", "run -np 2"),
        ("run --interleave launches --max-reruns 0", "run --interleave launches:reruns=0"),
        ("run --ssh-user ann --ssh-port 22 --engine ssh", "run --engine ssh:user=ann,port=22"),
        ("run -x A=1 --include a,b --exclude c", "run -x A=1 -H 'a,b,^c'"),
        ("run --exclude a,n[1,3]", "run -H '^a,^n[1,3]'"),
        ("backends --json", "backends --format json"),
    ],
)
def test_former_command_line_is_spelled_anew(old, new):
    assert shlex.join(spell_anew(shlex.split(old))) == new


@pytest.mark.parametrize(
    "line",
    ["run --backend ddp --detail-free", "collectives --warmup 3 -b 8", "report last --detail", "", "submit"],
)
def test_other_command_line_stays_as_it_is(line):
    assert spell_anew(shlex.split(line)) == shlex.split(line)


def test_former_command_is_refused_with_the_new_line(monkeypatch):
    monkeypatch.setattr("sys.argv", ["ringside", "aa", "--backend", "ddp", "-x", "KEY=hunter2"])
    with pytest.raises(UsageError) as refused:
        cli._call()
    assert refused.value.exit_code == 2
    assert "It is now: ringside run --backend ddp,ddp -x 'KEY=" in refused.value.remedy
    assert "hunter2" not in str(refused.value)
