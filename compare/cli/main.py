"""The command line: reads flags, hands them on, prints what comes back. No work is done here.

Everything but typer is imported where it is used: ``--help`` must not wait for torch, nor for rich.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from compare import __version__
from compare.cli import streams
from compare.errors import DataError, OutputError, RingsideError, UsageError
from compare.launch.signals import INTERRUPTED, end_in_good_order, ignore_interrupts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from compare.analysis import Analysis
    from compare.data import DatasetChoice, DatasetSource
    from compare.launch.engines.fanout import Reach
    from compare.launch.local import Site
    from compare.schema.arms import Arm
    from compare.schema.config import RunConfig
    from compare.schema.hosts import Host
    from compare.schema.results import Run, Verification


_EITHER_SPELLING = {
    "token_normalize_func": lambda name: name.replace("_", "-"),
    "help_option_names": ["-h", "--help"],
}

app = typer.Typer(
    name="compare",
    help="Which way of synchronising gradients should I use on my machines, what does it cost me, and why?",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # help in colours would take as long again to load as all the rest
    pretty_exceptions_enable=False,
    context_settings=_EITHER_SPELLING,
    epilog="Exit codes: 0 done, 2 wrong usage, 3 data, 4 something is not available, 5 output, 6 a launch "
    "failed, 7 a launch stalled, 8 an arm does not train what it should, 9 a host cannot be used, "
    "10 --strict found the arms unlike, 11 the budget was over too soon, 130 interrupted.",
)
data_app = typer.Typer(help="The data that every arm trains on.", no_args_is_help=True, rich_markup_mode=None)
install_app = typer.Typer(help="Build what pip alone cannot.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")
app.add_typer(install_app, name="install")

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", show_default="~/.cache/ringside/data", help="Folder that holds MNIST/raw/*-ubyte[.gz]."
    ),
]
ExportJson = Annotated[Path | None, typer.Option(help="Also write the run and its summary here.")]
DetailFlag = Annotated[bool, typer.Option("--detail", help="Show as well where the cost goes.")]

Backends = Annotated[
    list[str] | None,
    typer.Option(
        "--backend",
        help="Arms, comma separated or repeated: ddp,manual:mode=overlap,horovod:controller=mpi,mpi. "
        "`compare backends` lists them with their options.",
        show_default="all that are available; on the CPUs of one host manual:mode=shared_memory, too",
    ),
]
NumProc = Annotated[
    int | None,
    typer.Option(
        "-np", "--num-proc", min=1, show_default="the hostfile's slots, or else 2", help="Number of ranks."
    ),
]
Hostfile = Annotated[Path | None, typer.Option(help="Where the ranks run; see hostfiles/.")]
HostList = Annotated[
    str | None, typer.Option("-H", "--hosts", help="Hosts instead of a file: node1:4,node[2-3]:2.")
]
Include = Annotated[list[str] | None, typer.Option(help="Of these hosts, take only: node[1-2],node7.")]
Exclude = Annotated[list[str] | None, typer.Option(help="Of these hosts, leave out: node3.")]
Interface = Annotated[
    str | None,
    typer.Option(
        show_default="the one that all hosts share; lo on one machine", help="Network interface of all arms."
    ),
]
SshUser = Annotated[
    str, typer.Option(show_default="as ssh is configured", help="For hosts that name none themselves.")
]
SshPort = Annotated[
    int | None,
    typer.Option(min=1, max=65535, show_default="as ssh is configured", help="Where sshd listens."),
]
SshIdentity = Annotated[
    Path | None,
    typer.Option(
        exists=True, dir_okay=False, show_default="as ssh is configured", help="File of the private key."
    ),
]
Exports = Annotated[
    list[str] | None,
    typer.Option(
        "-x",
        "--env",
        help="NAME, with its value from your shell, or NAME=VALUE: for the environment of every rank, and "
        "kept out of the command lines of launchers, logs and results.",
    ),
]
Model = Annotated[str, typer.Option(help="mlp, wide, convnet, or widths of your own: mlp:784-4096-10.")]
Optimizer = Annotated[str, typer.Option(help="sgd, adam or adamw.")]
LearningRate = Annotated[
    float | None,
    typer.Option(
        "--lr", show_default="0.01 for sgd, 0.001 for the others", help="Learning rate, never scaled."
    ),
]
BatchSize = Annotated[int, typer.Option(help="Samples per rank and pass.")]
Accumulate = Annotated[
    int, typer.Option(help="Passes per step; gradients add up and are averaged after the last.")
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Threads = Annotated[int | None, typer.Option(show_default="cores / ranks per host", help="Threads per rank.")]
Dataset = Annotated[str, typer.Option(help="auto, mnist or digits.")]
Timeout = Annotated[float, typer.Option(help="Seconds after which a launch is ended.")]
Stall = Annotated[float, typer.Option(help="Seconds without progress after which a rank ends itself.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print every command as it is executed.")]


def main() -> None:
    """Run the command line; a user's mistake ends in three lines and an exit code, never a traceback."""
    end_in_good_order()
    streams.take_over()
    try:
        app()
    except KeyboardInterrupt:  # while something was still being loaded
        sys.exit(INTERRUPTED)
    except RingsideError as error:
        if not isinstance(error, streams.NobodyReadsError):
            with suppress(OutputError):
                _print_error(error)
        sys.exit(error.exit_code)
    finally:
        streams.leave_nothing_to_write()


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"ringside {__version__}")
        raise typer.Exit


@app.callback()
def program(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version, and stop."
        ),
    ] = False,
) -> None:
    """Which way of synchronising gradients should I use on my machines, what does it cost me, and why?"""


@app.command(context_settings=_EITHER_SPELLING)
def run(
    *,
    backend: Backends = None,
    num_proc: NumProc = None,
    hostfile: Hostfile = None,
    hosts: HostList = None,
    include: Include = None,
    exclude: Exclude = None,
    interface: Interface = None,
    ssh_user: SshUser = "",
    ssh_port: SshPort = None,
    ssh_identity: SshIdentity = None,
    env: Exports = None,
    model: Model = "mlp",
    optimizer: Optimizer = "sgd",
    lr: LearningRate = None,
    batch_size: BatchSize = 64,
    accumulate: Accumulate = 1,
    epochs: Annotated[int, typer.Option(help="Passes over the training set.")] = 1,
    steps: Annotated[int | None, typer.Option(help="Training steps, instead of epochs.")] = None,
    warmup: Annotated[int, typer.Option(help="First steps, which train but are not timed.")] = 30,
    repeats: Annotated[
        int | None,
        typer.Option(show_default="5, or what --budget allows", help="Rounds; each launches every arm once."),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(help="Seconds: go on until every verdict is settled, but no longer than this."),
    ] = None,
    max_reruns: Annotated[
        int, typer.Option(help="Rounds that may be taken again because others used the machine.")
    ] = 3,
    baseline: Annotated[
        str | None,
        typer.Option(show_default="the first named", help="Arm that the others are compared with."),
    ] = None,
    control: Annotated[
        bool, typer.Option("--control/--no-control", help="Also run the ranks without communication.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Of the model, the shuffles and the order of arms.")] = 0,
    device: Device = "auto",
    threads: Threads = None,
    dataset: Dataset = "auto",
    data_dir: DataDir = None,
    output: Annotated[
        Path | None,
        typer.Option(show_default="runs/<time>-<model>-np<ranks>", help="Folder for results and logs."),
    ] = None,
    export_json: ExportJson = None,
    timeout: Timeout = 300.0,
    stall: Stall = 30.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the commands of one round, and stop.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="End with an error if the arms were not measured alike.")
    ] = False,
    detail: DetailFlag = False,
    verbose: Verbose = False,
) -> None:
    """Run the same training through every arm, and print them side by side."""
    from compare.doctor.availability import survey
    from compare.experiment import settle as prepare
    from compare.experiment.run import new_run
    from compare.schema.store import create_directory, default_output, require_writable

    console, talk = _console(), _console(stderr=True)
    named = _named(backend)
    choice = prepare.choose_dataset(dataset)
    chosen = prepare.choose_hosts(
        hostfile, num_proc, named=hosts, include=include or (), exclude=exclude or ()
    )
    way = _way(ssh_user, ssh_port, ssh_identity, interface, env)
    if export_json:
        require_writable(export_json, to_be_made=output)
    with way.to(chosen, talk) as site:
        draft = prepare.begin_config(
            site,
            arms=named,
            model=model,
            optimizer=optimizer,
            learning_rate=lr,
            batch_size_per_rank=batch_size,
            accumulate=accumulate,
            epochs=epochs,
            steps=steps,
            warmup_steps=warmup,
            rounds=prepare.default_rounds(budget) if repeats is None else repeats,
            budget_seconds=budget,
            max_reruns=max_reruns,
            seed=seed,
            device=device,
            threads_per_rank=threads,
            launch_timeout_seconds=timeout,
            stall_seconds=stall,
        )
        config, left_out = prepare.settle(
            draft, survey(draft.backends), site, baseline=baseline, control=control
        )
        directory = output or default_output(config)
        if dry_run:
            _print_commands(console, config, site, directory)
            return
        source = _find_data(choice, data_dir, talk)
        directory = create_directory(directory)
        site.deliver(source, _teller(talk))
        result = _carry_out(new_run(config, source, site, left_out), directory, site, talk, verbose=verbose)
        analysis = _finish(console, result, directory, export_json, detail=detail)
        if strict:
            _require_alike(analysis)


def _find_data(choice: DatasetChoice, data_dir: Path | None, talk: Console) -> DatasetSource:
    from compare import data

    return data.resolve(
        choice,
        data_dir or data.default_root(),
        progress=_teller(talk),
    )


def _teller(talk: Console) -> Callable[[str], None]:
    return lambda said: talk.print(said, style="dim", markup=False, soft_wrap=True)


class _Way(NamedTuple):
    """How the user wants hosts to be reached, and to reach each other."""

    reach: Reach
    interface: str | None
    exported: dict[str, str]

    @contextmanager
    def to(self, hosts: tuple[Host, ...], talk: Console) -> Iterator[Site]:
        """Open it, and say what was understood before anything is started."""
        from compare.experiment import settle as prepare
        from compare.schema.hosts import NOBODY_NAMED, is_local

        if not all(map(is_local, hosts)):
            from compare.doctor.examine import quick_check

            _, findings = quick_check(hosts, reach=self.reach)
            for finding in findings:
                _teller(talk)(
                    f"{finding.level}: {finding.host}: {finding.what} {finding.found} {finding.fix}"
                )
        with prepare.open_site(
            hosts, reach=self.reach, interface=self.interface, exported=self.exported
        ) as site:
            # Of this machine alone there is nothing to tell, unless somebody named it.
            told = any(host.source != NOBODY_NAMED for host in hosts)
            for line in prepare.topology(site) if told else ():
                _teller(talk)(line)
            yield site


def _way(
    user: str | None, port: int | None, identity: Path | None, interface: str | None, env: list[str] | None
) -> _Way:
    from compare.launch.engines.fanout import Reach
    from compare.schema.environment import read_exports

    if identity and not identity.is_file():
        raise UsageError(f"--ssh-identity {identity} is not a file.", remedy="Name a private key.")
    reach = Reach(user=user or "", port=port, identity=str(identity.absolute()) if identity else "")
    return _Way(reach, interface, read_exports(env or [], os.environ))


def _named(backend: list[str] | None) -> tuple[Arm, ...]:
    """Read the arms that were named; none where that was left open."""
    from compare.schema.arms import parse_arms

    named = parse_arms(backend or [])
    if backend and not named:
        raise UsageError(
            "--backend names no arm.", remedy="Name some, or leave it out to compare all that are available."
        )
    return named


def _carry_out(run: Run, directory: Path, site: Site, talk: Console, *, verbose: bool) -> Run:
    """Run with live progress; interrupted, say where the finished part lies."""
    from compare.experiment.run import carry_out
    from compare.report.progress import LiveProgress

    try:
        with LiveProgress(talk, run.config, verbose=verbose) as progress:
            return carry_out(run, directory, site, progress)
    except KeyboardInterrupt:
        # From here on there is nothing left to stop: one more Ctrl-C must not change how this ends.
        ignore_interrupts()
        talk.print("Interrupted.")
        _print_kept(talk, directory)
        raise typer.Exit(INTERRUPTED) from None
    except RingsideError:
        _print_kept(talk, directory)
        raise


def _print_kept(talk: Console, directory: Path) -> None:
    import shlex

    if directory.exists():
        command = f"compare report {shlex.quote(str(directory))}"
        talk.print("What was finished is kept:", command, markup=False, soft_wrap=True)


def _finish(
    console: Console, run: Run, directory: Path, export_json: Path | None, *, detail: bool
) -> Analysis:
    from compare.analysis import analyse
    from compare.report import render
    from compare.report.table import RunTable
    from compare.schema.files import write_text

    analysis = analyse(run)
    if export_json:
        write_text(export_json, render(run, analysis, "json") + "\n")
    console.print()
    console.print(RunTable(run, analysis, detail=detail))
    console.print(f"Everything measured is in {directory}", style="dim", markup=False, soft_wrap=True)
    return analysis


def _require_alike(analysis: Analysis) -> None:
    from compare.errors import ConditionsError
    from compare.report.notes import said_of

    found = analysis.different
    if found:
        raise ConditionsError(
            "The arms were not measured alike, which --strict does not allow.",
            found="\n".join(map(said_of, found)),
            remedy="Make them alike, or declare the difference as an option of an arm; the results are kept.",
        )


def _print_commands(console: Console, config: RunConfig, site: Site, directory: Path) -> None:
    import shlex

    import msgspec

    from compare.experiment.schedule import order_of
    from compare.launch.arm import commands_for, launch_files
    from compare.schema.job import Planned

    def say(*words: str, style: str | None = None) -> None:
        console.print(*words, soft_wrap=True, markup=False, style=style)

    for index, arm in enumerate(order_of(config, 1), start=1):
        files = launch_files(directory, Planned(index, 1, arm))
        with site.spot(files) as spot:
            # On this machine they lead to folders that are there no more when somebody reads this.
            own = spot.settings() if site.network.network else {}
            commands = commands_for(config, arm, site, spot.job_file, own, mark=spot.mark)
        for command in commands:
            settings = [f"{name}={shlex.quote(value)}" for name, value in command.environment.items()]
            say(f"# {arm.label}" + (f" on {command.host.name}" if command.host else ""), style="dim")
            say(*settings, shlex.join(command.argv))
        for name, content in spot.described().items():
            say(f"# {name}", style="dim")
            say(content)
    if site.network.network:
        say("# job.json on every host: this, and the arm", style="dim")
        say(msgspec.json.format(msgspec.json.encode(config)).decode())


@app.command(context_settings=_EITHER_SPELLING)
def aa(
    *,
    backend: Annotated[str, typer.Option(help="The arm that is compared with itself.")],
    comparisons: Annotated[int, typer.Option(min=1, help="How often.")] = 10,
    repeats: Annotated[int, typer.Option(min=5, help="Rounds of each comparison.")] = 5,
    num_proc: NumProc = None,
    hostfile: Hostfile = None,
    hosts: HostList = None,
    include: Include = None,
    exclude: Exclude = None,
    interface: Interface = None,
    ssh_user: SshUser = "",
    ssh_port: SshPort = None,
    ssh_identity: SshIdentity = None,
    env: Exports = None,
    model: Model = "mlp",
    optimizer: Optimizer = "sgd",
    lr: LearningRate = None,
    batch_size: BatchSize = 64,
    accumulate: Accumulate = 1,
    steps: Annotated[int, typer.Option(help="Training steps of a launch.")] = 150,
    warmup: Annotated[int, typer.Option(help="First steps, which train but are not timed.")] = 30,
    max_reruns: Annotated[
        int, typer.Option(help="Rounds that may be taken again because others used the machine.")
    ] = 10,
    seed: Annotated[int, typer.Option(help="Of the model, the shuffles and the order of arms.")] = 0,
    device: Device = "auto",
    threads: Threads = None,
    dataset: Dataset = "auto",
    data_dir: DataDir = None,
    output: Annotated[
        Path | None,
        typer.Option(show_default="runs/<time>-<model>-np<ranks>-aa", help="Folder for results and logs."),
    ] = None,
    export_json: ExportJson = None,
    timeout: Timeout = 300.0,
    stall: Stall = 30.0,
    detail: DetailFlag = False,
    verbose: Verbose = False,
) -> None:
    """Compare an arm with itself: how often would this tool see a difference where there is none?"""
    import msgspec

    from compare.analysis.aa import twins
    from compare.doctor.availability import survey
    from compare.experiment import settle as prepare
    from compare.experiment.run import new_run
    from compare.schema.arms import parse_arms
    from compare.schema.store import create_directory, default_output, require_writable

    console, talk = _console(), _console(stderr=True)
    arms = parse_arms([backend])
    if len(arms) != 1:
        raise UsageError(f"--backend {backend} names {len(arms)} arms.", remedy="Name one, such as ddp.")
    choice = prepare.choose_dataset(dataset)
    chosen = prepare.choose_hosts(
        hostfile, num_proc, named=hosts, include=include or (), exclude=exclude or ()
    )
    way = _way(ssh_user, ssh_port, ssh_identity, interface, env)
    if export_json:
        require_writable(export_json, to_be_made=output)
    with way.to(chosen, talk) as site:
        draft = prepare.begin_config(
            site,
            arms=arms,
            model=model,
            optimizer=optimizer,
            learning_rate=lr,
            batch_size_per_rank=batch_size,
            accumulate=accumulate,
            steps=steps,
            warmup_steps=warmup,
            rounds=comparisons * repeats,
            comparisons=comparisons,
            max_reruns=max_reruns,
            seed=seed,
            device=device,
            threads_per_rank=threads,
            launch_timeout_seconds=timeout,
            stall_seconds=stall,
        )
        config, left_out = prepare.settle(draft, survey(draft.backends), site, baseline=None, control=False)
        first, second = twins(config.arms[0])
        config = msgspec.structs.replace(config, arms=(first, second), baseline=first.label)
        source = _find_data(choice, data_dir, talk)
        directory = create_directory(output or default_output(config, purpose="-aa"))
        site.deliver(source, _teller(talk))
        result = _carry_out(new_run(config, source, site, left_out), directory, site, talk, verbose=verbose)
        _finish(console, result, directory, export_json, detail=detail)


@app.command(context_settings=_EITHER_SPELLING)
def verify(
    *,
    backend: Backends = None,
    num_proc: NumProc = None,
    hostfile: Hostfile = None,
    hosts: HostList = None,
    include: Include = None,
    exclude: Exclude = None,
    interface: Interface = None,
    ssh_user: SshUser = "",
    ssh_port: SshPort = None,
    ssh_identity: SshIdentity = None,
    env: Exports = None,
    model: Model = "mlp",
    optimizer: Optimizer = "sgd",
    lr: LearningRate = None,
    batch_size: BatchSize = 64,
    accumulate: Accumulate = 1,
    seed: Annotated[int, typer.Option(help="Of the model and the shuffles.")] = 0,
    device: Device = "auto",
    threads: Threads = None,
    dataset: Dataset = "auto",
    data_dir: DataDir = None,
    output: Annotated[
        Path | None,
        typer.Option(
            show_default="runs/<time>-<model>-np<ranks>-verify", help="Folder for results and logs."
        ),
    ] = None,
    export_json: Annotated[Path | None, typer.Option(help="Also write the verification here.")] = None,
    timeout: Timeout = 300.0,
    stall: Stall = 30.0,
    verbose: Verbose = False,
) -> None:
    """Prove, launching every arm once, that all train what a single process would."""
    from compare.doctor.availability import survey
    from compare.experiment import settle as prepare
    from compare.experiment.run import new_run
    from compare.report.verification import renderable
    from compare.schema.files import write_json
    from compare.schema.job import STEPS
    from compare.schema.store import create_directory, default_output, require_writable

    console, talk = _console(), _console(stderr=True)
    named = _named(backend)
    choice = prepare.choose_dataset(dataset)
    chosen = prepare.choose_hosts(
        hostfile, num_proc, named=hosts, include=include or (), exclude=exclude or ()
    )
    way = _way(ssh_user, ssh_port, ssh_identity, interface, env)
    if export_json:
        require_writable(export_json, to_be_made=output)
    with way.to(chosen, talk) as site:
        draft = prepare.begin_config(
            site,
            arms=named,
            model=model,
            optimizer=optimizer,
            learning_rate=lr,
            batch_size_per_rank=batch_size,
            accumulate=accumulate,
            steps=STEPS,
            warmup_steps=0,
            rounds=1,
            seed=seed,
            device=device,
            threads_per_rank=threads,
            launch_timeout_seconds=timeout,
            stall_seconds=stall,
        )
        config, left_out = prepare.settle(draft, survey(draft.backends), site, baseline=None, control=False)
        source = _find_data(choice, data_dir, talk)
        directory = create_directory(output or default_output(config, purpose="-verify"))
        site.deliver(source, _teller(talk))
        verification = _verify(
            new_run(config, source, site, left_out), directory, site, talk, verbose=verbose
        )
        if export_json:
            write_json(export_json, verification)
        console.print()
        console.print(renderable(verification))
        console.print(f"Everything found is in {directory}", style="dim", markup=False, soft_wrap=True)
        raise typer.Exit(verification.exit_code)


def _verify(run: Run, directory: Path, site: Site, talk: Console, *, verbose: bool) -> Verification:
    from compare.experiment.verify import verify
    from compare.report.progress import LiveProgress

    kept = f"What was finished is in {directory}"
    try:
        with LiveProgress(talk, run.config, verbose=verbose) as progress:
            return verify(run, directory, site, progress)
    except KeyboardInterrupt:
        ignore_interrupts()
        talk.print("Interrupted.", kept, markup=False, soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    except RingsideError:
        talk.print(kept, markup=False, soft_wrap=True)
        raise


@app.command(context_settings=_EITHER_SPELLING)
def report(
    run_directory: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a run, or its results.json.")
    ],
    *,
    form: Annotated[str, typer.Option("--format", help="table, markdown, csv or json.")] = "table",
    detail: DetailFlag = False,
    output: Annotated[Path | None, typer.Option(help="Write to this file instead.")] = None,
) -> None:
    """Show a run again, whole or as far as it came, in any format."""
    from compare.analysis import analyse
    from compare.report import RENDERERS, render
    from compare.report.table import RunTable
    from compare.schema.files import write_text
    from compare.schema.store import read_run, results_file

    if form not in RENDERERS:
        raise UsageError(
            f"There is no format called {form!r}.", remedy=f"Use one of: {', '.join(RENDERERS)}."
        )
    shown = read_run(run_directory)
    if output and output.exists() and output.samefile(results_file(run_directory)):
        raise UsageError(f"{output} holds the run itself.", remedy="Write the report to another file.")
    analysis = analyse(shown)
    if output:
        write_text(output, render(shown, analysis, form, detail=detail) + "\n")
    elif form == "table":
        _console().print(RunTable(shown, analysis, detail=detail))
    else:
        typer.echo(render(shown, analysis, form, detail=detail))


@app.command(context_settings=_EITHER_SPELLING)
def backends() -> None:
    """List the backends: what is here, its version and transport, and why something is not."""
    from compare.doctor.availability import survey
    from compare.doctor.backends_table import renderable

    _console().print(renderable(survey()))


@app.command(context_settings=_EITHER_SPELLING)
def doctor(
    *,
    hostfile: Hostfile = None,
    hosts: HostList = None,
    ssh_user: SshUser = "",
    ssh_port: SshPort = None,
    ssh_identity: SshIdentity = None,
    python: Annotated[
        str | None, typer.Option(show_default="this one's path", help="The interpreter on the hosts.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only what takes no second, as before every run.")
    ] = False,
    ports: Annotated[
        bool, typer.Option("--ports/--no-ports", help="Let all hosts connect to a port of the first.")
    ] = True,
    export_json: Annotated[Path | None, typer.Option(help="Also write all facts and findings here.")] = None,
    export_markdown: Annotated[Path | None, typer.Option(help="Also write what is printed here.")] = None,
) -> None:
    """Examine the hosts, or this machine: what would break or slow down a run, and how to mend it.

    Ends with 0 where there is no problem, otherwise with 9; warnings and notes are no problems.
    """
    from compare.doctor.examine import examine, exit_code
    from compare.doctor.report import DoctorReport, markdown
    from compare.launch.engines.fanout import Reach
    from compare.schema.files import write_json, write_text
    from compare.schema.store import require_writable

    for path in filter(None, (export_json, export_markdown)):
        require_writable(path, to_be_made=None)
    named = _hosts_to_examine(hostfile, hosts)
    talk = _console(stderr=True)
    talk.print(f"Examining {len(named)} {'host' if len(named) == 1 else 'hosts'}", style="dim")
    try:
        examination = examine(
            named,
            reach=Reach(user=ssh_user, port=ssh_port, identity=str(ssh_identity or "")),
            python=python or sys.executable,
            quick=quick,
            ports=ports and not quick and len(named) > 1,
        )
    except KeyboardInterrupt:
        talk.print("Interrupted.")
        raise typer.Exit(INTERRUPTED) from None
    if export_json:
        write_json(export_json, examination)
    if export_markdown:
        write_text(export_markdown, markdown(examination) + "\n")
    _console().print(DoctorReport(examination))
    raise typer.Exit(exit_code(examination))


def _hosts_to_examine(hostfile: Path | None, hosts: str | None) -> tuple[Host, ...]:
    from compare.schema.hosts import local_host, parse_hosts, read_hostfile

    if hostfile is not None and hosts is not None:
        raise UsageError("--hostfile and -H both name hosts.", remedy="Give one of them.")
    if hostfile is not None:
        return read_hostfile(hostfile)
    return (local_host(1),) if hosts is None else parse_hosts(hosts)


@data_app.command("fetch", context_settings=_EITHER_SPELLING)
def data_fetch(data_dir: DataDir = None) -> None:
    """Download MNIST once, and verify every byte."""
    from compare import data

    folder = data.fetch_mnist(
        data_dir or data.default_root(), progress=lambda said: typer.echo(said, err=True)
    )
    typer.echo(f"MNIST is complete and verified in {folder}")


@data_app.command("status", context_settings=_EITHER_SPELLING)
def data_status(data_dir: DataDir = None) -> None:
    """Say which files are there, and whether their content is right."""
    from compare import data
    from compare.cli.data_files import renderable

    root = data_dir or data.default_root()
    files = data.status(root)
    _console().print(renderable(files))
    if any(file.problem for file in files):
        raise typer.Exit(DataError.exit_code)


@install_app.command("horovod", context_settings=_EITHER_SPELLING)
def install_horovod(
    *,
    constraints: Annotated[
        Path | None, typer.Option(help="pip constraints for what the build needs.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Build again, even if a wheel is at hand.")] = False,
) -> None:
    """Build Horovod 0.28.1 from its unmodified source for the torch that is installed."""
    from compare.doctor.horovod import build as install

    install.install_horovod(constraints=constraints, force=force)


def _console(*, stderr: bool = False) -> Console:
    """Print to the terminal at its own width; to a file or a pipe, as wide as a whole table."""
    from rich.console import Console

    from compare.report.table import PLAIN_WIDTH

    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PLAIN_WIDTH
    return console


def _print_error(error: RingsideError) -> None:
    typer.secho(f"error: {error.what}", fg=typer.colors.RED, bold=True, err=True)
    for part in (error.found, error.remedy):
        if part:
            typer.echo("  " + part.replace("\n", "\n  "), err=True)
