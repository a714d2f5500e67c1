"""Draw how the cost grows."""

from __future__ import annotations

STYLES = {
    "none": ("#777777", "x"),
    "ddp": ("#d55e00", "o"),
    "manual:mode=shared_memory": ("#009e73", "s"),
    "horovod": ("#cc79a7", "^"),
    "mpi": ("#0072b2", "D"),
}


def draw(points, file, *, cores):
    """Draw step time and sync cost over gradient size.

    Each number of ranks has a column of panels. Bars are 95 % intervals.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    counts = sorted({point.ranks for point in points})
    size = (3.3 * len(counts) + 0.6, 6.0)
    figure, panels = plt.subplots(2, len(counts), sharex=True, sharey="row", figsize=size, squeeze=False)
    for column, ranks in zip(panels.T, counts, strict=True):
        _draw_column(column, [point for point in points if point.ranks == ranks])
        plural = "s" if ranks > 1 else ""
        label = " (oversubscribed)" if ranks > cores else ""
        column[0].set_title(f"{ranks} rank{plural}{label}", fontsize=11)
        column[1].set_xlabel("gradients, MB")
    panels[0, 0].set_ylabel("step, ms")
    panels[1, 0].set_ylabel("sync cost, ms")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=len(labels), frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    figure.savefig(file, dpi=110)
    plt.close(figure)


def _draw_column(column, points):
    above, below = column
    for index, (arm, (colour, mark)) in enumerate(STYLES.items()):
        own = sorted((p for p in points if p.arm == arm), key=lambda point: point.megabytes)
        if not own:
            continue
        # The bars stand side by side, so that none covers another.
        megabytes = [point.megabytes * 1.05 ** (index - len(STYLES) // 2) for point in own]
        style = {"color": colour, "marker": mark, "markersize": 5, "linewidth": 1.6, "label": arm}
        _draw_line(above, megabytes, [point.step_seconds for point in own], style)
        if own[0].sync_seconds is not None:
            _draw_line(below, megabytes, [point.sync_seconds for point in own], style)
    above.set_yscale("log")
    # One rank has almost no sync cost, and noise may make it negative.
    below.set_yscale("symlog", linthresh=0.1, linscale=0.5)
    for panel in column:
        _arrange(panel)


def _draw_line(panel, megabytes, estimates, style):
    means = [found.mean * 1e3 for found in estimates]
    ends = [((found.mean - found.low) * 1e3, (found.high - found.mean) * 1e3) for found in estimates]
    panel.errorbar(megabytes, means, yerr=list(zip(*ends, strict=True)), elinewidth=1, capsize=2.5, **style)


def _arrange(panel):
    from matplotlib.ticker import FuncFormatter, NullFormatter

    panel.set_xscale("log")
    panel.set_xticks([0.8, 4.8, 80], ["0.8", "4.8", "80"])
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.grid(visible=True, color="#dddddd", linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
