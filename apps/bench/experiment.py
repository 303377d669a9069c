"""Experiments of a benchmark, and the command, the table and the picture that each becomes."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

INCHES = (9.0, 5.5)
DOTS_PER_INCH = 110
COLOURS = ("#0b6e99", "#d1601b", "#7a7a7a")  # first, second and what is only there to compare with
GRID = {"color": "#dddddd", "linewidth": 0.6}

Record = dict[str, Any]


def size(default: Any, help: str) -> Any:
    """Declare a field of an experiment's sizes, which becomes an option."""
    return dataclasses.field(default=default, metadata={"help": help})


@dataclass(frozen=True, slots=True)
class Experiment:
    """One question of a benchmark, with its measurement and the form of its answer."""

    name: str
    help: str
    sizes: type[Any]  # a frozen dataclass whose fields have defaults
    quick: Any  # sizes that only show that everything works
    measure: Callable[[Any], Record]  # for JSON; its entry "exact" says whether all counts were right
    text: Callable[[Record], str]
    draw: Callable[[Record, Any], None]  # into a matplotlib Figure

    def command(self, benchmark: str) -> click.Command:
        """Return the subcommand of a benchmark, with an option for each size."""
        options: list[click.Parameter] = [
            click.Option(
                [f"--{field.name.replace('_', '-')}"],
                default=field.default,
                show_default=True,
                help=field.metadata["help"],
            )
            for field in dataclasses.fields(self.sizes)
        ]

        def run(as_json: bool, plots: Path | None, **sizes: Any) -> None:
            carry_out(benchmark, [(self, self.sizes(**sizes))], as_json, plots)

        return click.Command(self.name, callback=run, params=[*options, *reporting()], help=self.help)


def commands(benchmark: str, help: str, experiments: Sequence[Experiment]) -> click.Group:
    """Return the command line of a benchmark: a subcommand for each experiment, and `all`."""
    group = click.Group(benchmark, help=help)
    for experiment in experiments:
        group.add_command(experiment.command(benchmark))

    def run_all(quick: bool, as_json: bool, plots: Path | None) -> None:
        planned = [(each, each.quick if quick else each.sizes()) for each in experiments]
        carry_out(benchmark, planned, as_json, plots)

    small = click.Option(["--quick"], is_flag=True, help="Small sizes, which show only that everything works.")
    group.add_command(click.Command("all", callback=run_all, params=[small, *reporting()], help="All experiments."))
    return group


def main(group: click.Group) -> None:
    """Run a benchmark's command line; `all` without arguments. Never returns."""
    group.main(args=sys.argv[1:] or ["all"])


def reporting() -> Sequence[click.Parameter]:
    """Return the options of every subcommand."""
    folder = click.Path(file_okay=False, path_type=Path)
    return (
        click.Option(["--json", "as_json"], is_flag=True, help="Print the figures as JSON."),
        click.Option(["--plots"], type=folder, metavar="DIR", help="Also draw a PNG there; needs matplotlib."),
    )


def carry_out(
    benchmark: str, planned: Sequence[tuple[Experiment, Any]], as_json: bool, plots: Path | None
) -> None:
    """Run experiments with their sizes, and show each result as it comes. Raises ClickException for a wrong count."""
    figure_of = plotter() if plots is not None else None
    records: dict[str, Record] = {}
    for experiment, sizes in planned:
        record = experiment.measure(sizes)
        records[experiment.name] = {"sizes": dataclasses.asdict(sizes), **record}
        if not as_json:
            click.echo(f"{experiment.name}\n{experiment.text(record)}\n")
        if plots is not None and figure_of is not None:
            plots.mkdir(parents=True, exist_ok=True)
            figure = figure_of()
            experiment.draw(record, figure)
            figure.savefig(plots / f"{benchmark}-{experiment.name}.png")
    if as_json:
        click.echo(json.dumps(records))
    if wrong := [name for name, record in records.items() if not record.get("exact", True)]:
        raise click.ClickException(f"counts were wrong: {', '.join(wrong)}")


def plotter() -> Callable[[], Any]:
    """Return a function that makes an empty figure. Raises ClickException at once if matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise click.ClickException("--plots needs matplotlib: pip install 'megaflow[plots]'") from error
    return lambda: Figure(figsize=INCHES, dpi=DOTS_PER_INCH, layout="constrained")  # drawn by Agg: no display needed


def plain_axes(axes: Any, title: str, x: str, y: str) -> None:
    """Set the labels of axes, and remove needless lines."""
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(**GRID)
    axes.set_axisbelow(True)
    if y:
        axes.yaxis.set_major_formatter("{x:,g}")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def doubling_axes(axes: Any, title: str, x: str, y: str, is_steep: bool) -> None:
    """Do the same with a logarithmic `x` of base 2, and a logarithmic `y` if the values grow likewise (`is_steep`)."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    if is_steep:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0)
    plain_axes(axes, title, x, y)


def verdict(passed: bool) -> str:
    """Return pass or FAIL."""
    return "pass" if passed else "FAIL"
