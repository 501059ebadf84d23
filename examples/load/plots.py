"""The tables as pictures: bars for a server, a bar for each number of model processes."""

from __future__ import annotations

from pathlib import Path

from matplotlib import pyplot

WORKERS = (1, 2, 4)


def draw(rates: dict[tuple[str, int], float], bert: str, simulated: str, folder: Path) -> None:
    """Write three pictures into a folder."""
    folder.mkdir(exist_ok=True)
    _bars(rates, "over HTTP, BERT: requests a second", folder / "http.svg")
    _bars(_read(bert), "futures, BERT: sentences a second", folder / "futures.svg")
    _bars(_read(simulated), "futures, a simulated GPU: sentences a second", folder / "simulated.svg")


def _bars(rates: dict[tuple[str, int], float], title: str, path: Path) -> None:
    names = list(dict.fromkeys(name for name, _ in rates))
    pyplot.rcParams["svg.hashsalt"] = "zbatch"  # the same figures, the same file
    figure, axes = pyplot.subplots(figsize=(7, 3))
    for index, workers in enumerate(WORKERS):
        places = [place for place, name in enumerate(names) if (name, workers) in rates]
        axes.bar(
            [place + 0.27 * (index - 1) for place in places],
            [rates[names[place], workers] for place in places],
            width=0.25,
            label=f"{workers} model process{'es' if workers > 1 else ''}",
        )
    axes.set_xticks(range(len(names)), names)
    axes.set_title(title)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _read(table: str) -> dict[tuple[str, int], float]:
    """Return what stands in a table, by column and number of model processes."""
    header, _, *rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines()]
    found = {}
    for workers, *cells in rows:
        for name, cell in zip(header[1:], cells, strict=True):
            if cell:
                found[name, int(workers)] = float(cell)
    return found
