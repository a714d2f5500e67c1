"""Commands and flags of earlier versions are answered with the new command line."""

import shlex

import pytest

from compare.cli import main as cli
from compare.cli.replaced import spell_anew
from compare.errors import UsageError


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("aa --backend ddp", "run --backend ddp,ddp --steps 150"),
        ("aa --backend mpi --comparisons 4 --steps 300", "run --backend mpi,mpi --steps 300 --repeats 20"),
        ("aa --comparisons many", "run --steps 150 --backend ddp,ddp"),
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
        ("submit -- aa --backend ddp", "submit -- run --backend ddp,ddp --steps 150"),
        ("report last --wide --sort name --output 'a b.md'", "report last --detail --export 'a b.md'"),
        ("report a b --format html --output both", "report a b --export both.html"),
        ("run --epochs 2 --warmup 10", "run --steps 2epochs:warmup=10"),
        ("run --steps 60 --warmup 10", "run --steps 60:warmup=10"),
        ("run --warmup=10", "run --steps 1epoch:warmup=10"),
        ("run --workload a.py:b --warmup 10", "run --workload a.py:b --steps 200:warmup=10"),
        ("run --epochs 2 --steps 60 --lr=1", "run --steps 60 --optimizer sgd:lr=1"),
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
        ("run --nproc-per-node 2 --wide", "run -np 2"),
        ("run --interleave launches --max-reruns 0", "run --interleave launches:reruns=0"),
        ("run --ssh-user ann --ssh-port 22 --engine ssh -H a", "run --engine ssh:user=ann,port=22 -H a"),
        ("run --ssh-port 22 --hosts a,b", "run --hosts a,b --engine auto:port=22"),
        ("run -x A=1 --include a,b --exclude c", "run -x A=1 -H 'a,b,^c'"),
        ("run --exclude a,n[1,3] --include n[1-9]", "run -H 'n[1-9],^a,^n[1,3]'"),
        ("run --include a --include b --hostfile h", "run --hostfile h -H a,b"),
        ("backends --json", "backends --format json"),
        ("run --json", "run --export -"),
        ("explain last --arm=ddp", "report last --arm=ddp --format lesson"),
        ("rehearse --link 1gbit -- ringside run -np 2", "run --engine rehearsal:rate=1gbit -np 2"),
        ("rehearse --slots=2 -- --backend ddp", "run --engine rehearsal:slots=2 --backend ddp"),
    ],
)
def test_former_command_line_is_spelled_anew(old, new):
    assert shlex.join(spell_anew(shlex.split(old))) == new
    _parse(shlex.split(new))


def _parse(words):
    """Parse a command line; an error is raised for a flag or a word that its command does not know."""
    command = cli._load_commands()[words[0]]
    while words[1:] and words[1] in getattr(command, "commands", {}):
        words, command = words[1:], command.commands[words[1]]
    command.make_parser(command.context_class(command)).parse_args(list(words[1:]))


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("run -H a,b --include a", "Name only the hosts to use with -H"),
        ("run --hosts=a,b --exclude a", "Name only the hosts to use with -H"),
        ("run --config x.toml", "[tool.ringside]"),
        ("run --nproc-per-node 2 -H a,b", "Give -np the number of all ranks"),
        ("verify --ssh-port 22 --ssh-user ann", "Leave out --ssh-port, --ssh-user, or name hosts"),
        ("run --engine slurm -H a --ssh-port 22", "Leave out --ssh-port"),
        ("rehearse --hosts 2 -- run --interface eth0", "A rehearsal makes its own hosts"),
        ("rehearse run --include a", "A rehearsal makes its own hosts"),
        ("diff a b --fail-if-slower 5%", "`ringside gate --against PYTHON` judges"),
        ("diff a b --format github-benchmark", "`ringside gate --against PYTHON` judges"),
        ("submit -- run --config x.toml", "[tool.ringside]"),
        ("report last --pictures p --png", "Leave out --png"),
        ("clean --keep 3", "by hand"),
        ("schema", "docs/results.schema.json"),
    ],
)
def test_line_that_no_new_one_equals_gets_advice(line, advice):
    with pytest.raises(UsageError) as refused:
        spell_anew(shlex.split(line))
    assert advice in refused.value.remedy


@pytest.mark.parametrize(
    "line",
    [
        *("run --backend ddp --detail-free", "collectives --warmup 3 -b 8", "report last --detail", ""),
        *("meter --warmup 50 train.py --epochs 3 --lr 0.1", "submit -- meter train.py --epochs 3"),
        *("submit", "submit -- run --engine=auto -H=a --steps=60:warmup=1", "report --open last --arm x"),
    ],
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
