"""Draw the pictures of the documentation: `python docs/pictures.py` writes `docs/pictures/*.svg`.

1. A picture takes the colors of the reader's system. It has a background of its own, so it stays readable on a page
   whose colors the reader has switched.
2. All words are text. `title` and `desc` describe the picture to screen readers that open it by itself; on a page, the
   alternative text of the image does.
3. The same script writes the same bytes. `tests/test_pictures.py` compares them with the committed files, and checks
   what the pictures say: contrast, and the numbers in them.
"""

import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

FOLDER = Path(__file__).with_name("pictures")
WIDTH = 700
COLORS = {  # name -> in light and in dark colors
    "card": ("#fbfcfe", "#191d27"),
    "edge": ("#cdd4df", "#3a4254"),
    "ink": ("#1c2330", "#e8ecf3"),
    "soft": ("#525c70", "#aab4c5"),
    "plain": ("#eef1f6", "#262c3a"),
    "blue": ("#0b57b0", "#8ab8ff"),
    "blue-fill": ("#dfebfc", "#1c3252"),
    "orange": ("#8f4400", "#ffb77a"),
    "orange-fill": ("#fdead6", "#472d14"),
    "green": ("#17622f", "#7fd69a"),
    "green-fill": ("#ddf3e3", "#1a3926"),
    "violet": ("#6330ad", "#cbaaff"),
    "violet-fill": ("#ede5fb", "#332457"),
}
INKS = ("ink", "soft", "blue", "orange", "green", "violet")
LETTER_SHARE = 0.56     # mean width of a letter, as a share of the size of the font
MARGIN = 8.0            # between words and the edges of their box


def variables(scheme: int) -> str:
    return "".join(f"--{name}:{pair[scheme]};" for name, pair in COLORS.items())


STYLE = (
    f":root{{{variables(0)}}}@media(prefers-color-scheme:dark){{:root{{{variables(1)}}}}}"
    'text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}.bold{font-weight:600}'
)


class Picture:
    """One picture, made of parts that are drawn in the order of the calls. Lengths are in pixels."""

    def __init__(self, name: str, height: int, title: str, text: str) -> None:
        self.name, self._height, self._title, self._text = name, height, title, text
        self._parts: list[str] = []

    def text(self, x: float, y: float, words: str, color: str = "ink", *, anchor: str = "start", bold: bool = False,
             size: int = 14) -> None:    # fmt: skip
        """Write lines; `y` is the base of the first one."""
        for at, line in enumerate(words.split("\n")):
            end = x + len(line) * size * LETTER_SHARE * {"start": 1.0, "middle": 0.5, "end": 0.0}[anchor]
            assert end <= WIDTH, f"{self.name}: too long: {line!r}"
            weight = ' class="bold"' if bold else ""
            self._parts.append(
                f'<text x="{x:g}" y="{y + at * size * 1.3:g}" font-size="{size}" fill="var(--{color})" '
                f'text-anchor="{anchor}"{weight}>{escape(line, quote=False)}</text>'
            )

    def box(self, x: float, y: float, width: float, height: float, words: str = "", color: str = "soft", *,
            bold: bool = False, size: int = 14, dashed: bool = False, hollow: bool = False) -> None:    # fmt: skip
        """Draw a box with words in its middle."""
        lines = words.split("\n")
        longest = max(map(len, lines)) * size * LETTER_SHARE
        assert longest <= width - MARGIN, f"{self.name}: {words!r} does not fit"
        dashes = ' stroke-dasharray="4 3"' if dashed else ""
        fill = "none" if hollow else "var(--plain)" if color == "soft" else f"var(--{color}-fill)"
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{fill}" '
            f'stroke="var(--{color})" stroke-width="1.3"{dashes}/>'
        )
        if words:
            first = y + height / 2 - (len(lines) - 1) * size * 0.65 + size * 0.36
            self.text(x + width / 2, first, words, "ink" if color == "soft" else color, anchor="middle", bold=bold,
                      size=size)    # fmt: skip

    def record(self, x: float, y: float, words: str, color: str, *, waits: bool = False) -> None:
        """Draw a record: a circle around its epoch. One that waits has a dashed edge."""
        dashes = ' stroke-dasharray="3 2.5"' if waits else ""
        self._parts.append(
            f'<circle cx="{x:g}" cy="{y:g}" r="14" fill="var(--{color}-fill)" stroke="var(--{color})" '
            f'stroke-width="1.5"{dashes}/>'
        )
        self.text(x, y + 4.5, words, color, anchor="middle", bold=True, size=13)

    def line(self, places: list[tuple[float, float]], color: str = "soft", *, width: float = 1.6, dashed: bool = False,
             arrow: bool = False) -> None:    # fmt: skip
        """Draw a line through places, with a head at its end if it is an arrow."""
        points = " ".join(f"{x:g},{y:g}" for x, y in places)
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        head = f' marker-end="url(#{color})"' if arrow else ""
        self._parts.append(
            f'<polyline points="{points}" fill="none" stroke="var(--{color})" stroke-width="{width:g}"{dashes}{head}/>'
        )

    def svg(self) -> str:
        heads = "".join(
            f'<marker id="{color}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0,0L10,5L0,10z" fill="var(--{color})"/></marker>'
            for color in INKS
            if any(f"url(#{color})" in part for part in self._parts)
        )
        return "\n".join((
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{self._height}" '
            f'viewBox="0 0 {WIDTH} {self._height}" role="img" aria-labelledby="title desc">',
            f'<title id="title">{escape(self._title)}</title>', f'<desc id="desc">{escape(self._text)}</desc>',
            f"<style>{STYLE}</style>", f"<defs>{heads}</defs>",
            f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{self._height - 1}" rx="10" fill="var(--card)" '
            'stroke="var(--edge)"/>',
            *self._parts, "</svg>", "",
        ))    # fmt: skip


def frontiers() -> Picture:
    """Two moments of the records on their way to one operator."""
    made = Picture(
        "frontiers", 372, "A frontier before and after the last record of an epoch",
        "Columns are epochs 1 to 5, rows are two workers. Above, worker 1 still has a record of epoch 2 on its way, so "
        "the frontier stands before epoch 2, and only epoch 1 is closed. Below, that record has been applied: the "
        "frontier has advanced to epoch 3, and epoch 2 is closed.",
    )  # fmt: skip
    moments = (
        (26, "Now", 2, ((3, 0), (4, 0)), ((2, 0), (3, 0)), (5, 4)),
        (200, "A moment later", 3, ((3, 0), (4, 0)), ((3, 0),), (5, 4)),
    )
    for top, when, frontier, *rows, reading in moments:
        made.text(20, top + 6, when, bold=True)
        column = {epoch: 148 + epoch * 92 for epoch in range(1, 6)}
        for epoch, x in column.items():
            is_closed = epoch < frontier
            made.text(x, top + 6, f"epoch {epoch}", "green" if is_closed else "soft", anchor="middle", size=13)
            made.box(x - 41, top + 16, 82, 110, color="green" if is_closed else "soft", hollow=not is_closed,
                     dashed=not is_closed)    # fmt: skip
            if is_closed:
                made.text(x, top + 76, "closed", "green", anchor="middle", bold=True)
        for worker, (records, color) in enumerate(zip(rows, ("blue", "orange"))):
            y = top + 46 + worker * 52
            made.text(20, y - 2, f"worker {worker}", color, bold=True)
            made.text(20, y + 15, f"reads epoch {reading[worker]}", "soft", size=12)
            for epoch, _ in records:
                made.record(column[epoch], y, str(epoch), color)
            made.box(column[reading[worker]] - 32, y - 14, 64, 28, "reads", color, size=12, dashed=True)
        x = column[frontier] - 46
        made.line([(x, top + 12), (x, top + 136)], "violet", width=3)
        made.text(x, top + 154, f"frontier {frontier}", "violet", anchor="middle", bold=True)
    return made


def bins() -> Picture:
    """From a key to the worker that has its state."""
    made = Picture(
        "bins", 240, "From a key to its worker",
        "The hash of the key river selects bin 91 of 256. The routing table names worker 1 as the owner of bin 91. A "
        "move changes one entry of the table, and takes the states of the bin along.",
    )  # fmt: skip
    made.text(20, 34, "key", "soft")
    made.box(20, 44, 92, 36, '"river"', "green", bold=True)
    made.line([(114, 62), (168, 62)], arrow=True)
    made.text(140, 52, "hash", "soft", anchor="middle", size=12)
    made.text(170, 34, "bin 91 of 256", "green", bold=True)
    for at in range(12):
        number = 86 + at
        is_here = number == 91
        made.box(172 + at * 42, 44, 38, 36, str(number), "green" if is_here else "soft", bold=is_here, size=13)
    made.text(20, 124, "routing table", "soft")
    for at in range(12):
        owner = (86 + at) % 2
        made.box(172 + at * 42, 104, 38, 32, str(owner), ("blue", "orange")[owner], bold=True, size=13)
    made.line([(401, 82), (401, 102)], "green", arrow=True)
    made.text(20, 143, "bin → worker", "soft", size=12)
    made.box(172, 174, 244, 44, "worker 0: its bins, with the\nstates and timers of their keys", "blue", size=13)
    made.box(430, 174, 244, 44, "worker 1: its bins, with the\nstates and timers of their keys", "orange", size=13)
    made.line([(401, 138), (401, 155), (552, 155), (552, 172)], "orange", arrow=True)
    return made


def operator() -> Picture:
    """F and S of one operator on two workers."""
    made = Picture(
        "operator", 342, "A stateful operator on two workers",
        "On each worker the operator has two parts. F receives the worker's records and the commands, and sends each "
        "record to S on the worker that owns the bin. S keeps the states and calls the fold. Bins that move go from F "
        "to S of the new owner. F also learns how far the output of S has advanced.",
    )  # fmt: skip
    for worker, (color, top) in enumerate((("blue", 84), ("orange", 212))):
        made.text(20, top + 4, f"worker {worker}", color, bold=True)
        made.text(20, top + 46, "records", "soft")
        made.line([(80, top + 41), (146, top + 41)], arrow=True)
        made.box(150, top + 10, 108, 62, "F\nroutes", color, bold=True)
        made.box(448, top + 10, 124, 62, "S\nfolds, states", color, bold=True)
        made.line([(574, top + 41), (622, top + 41)], arrow=True)
        made.text(628, top + 46, "outputs", "soft")
        made.line([(260, top + 30 + 22 * worker), (444, top + 30 + 22 * worker)], color, arrow=True)
        side, away = ((8, -14), (74, 94))[worker]
        made.line([(510, top + side), (510, top + away), (232, top + away), (232, top + side)], "violet", dashed=True,
                  arrow=True)    # fmt: skip
        made.text(368, top + (-20, 112)[worker], "how far the outputs of S have come", "violet", anchor="middle",
                  size=12)    # fmt: skip
    made.line([(260, 136), (444, 246)], "blue", arrow=True)
    made.line([(260, 242), (444, 142)], "orange", arrow=True)
    made.text(352, 107, "records, and bins that move", "soft", anchor="middle", size=12)
    made.text(204, 30, "commands, each at an epoch: move bin 91 to worker 0", "violet", bold=True)
    made.line([(176, 22), (176, 90)], "violet", arrow=True)
    made.line([(176, 36), (136, 36), (136, 192), (176, 192), (176, 218)], "violet", arrow=True)
    return made


def move() -> Picture:
    """The steps of a move at epoch 40."""
    made = Picture(
        "move", 640, "A move of bin 91 from worker 1 to worker 0 at epoch 40, in four steps",
        "One: each F reads the command, and no S applies epoch 40 before step four. Two: F sends records of epoch 39 "
        "to worker 1 and those of 40 and 41 to worker 0, where they wait. Three: all records before 40 are applied, so "
        "F of worker 1 takes the bin out and sends its states in chunks. Four: after the last chunk, worker 0 applies "
        "the records that have waited.",
    )  # fmt: skip
    steps = (
        ("1  The command arrives at each F: bin 91 to worker 0, at epoch 40.",
         "Records before epoch 40 go on. No S applies epoch 40 or later until step 4."),
        ("2  F routes each record by its own epoch: 39 to worker 1, 40 and 41 to worker 0.",
         "The new owner keeps 40 and 41 until it has the bin."),
        ("3  All records before 40 are applied: F takes the bin out and sends it in chunks.",
         "A few chunks are under way at a time, so a move needs little more memory."),
        ("4  The last chunk is there: worker 0 applies 40 and 41, in order.",
         "Records of 40 and later have waited until here: this is the pause of a move."),
    )  # fmt: skip
    for at, (head, foot) in enumerate(steps):
        top = 14 + at * 156
        made.text(20, top + 18, head, bold=True)
        made.box(20, top + 32, 290, 76, color="orange", hollow=True)
        made.text(32, top + 52, "worker 1, old owner", "orange", size=13)
        made.box(390, top + 32, 290, 76, color="blue", hollow=True)
        made.text(402, top + 52, "worker 0, new owner", "blue", size=13)
        made.text(20, top + 128, foot, "soft", size=13)
        if at < 2:
            made.box(32, top + 62, 76, 36, "bin 91", "green", bold=True)
        if at == 0:
            for x in (176, 546):
                made.box(x, top + 66, 112, 28, "F: 91 → 0 at 40", "violet", size=12)
        elif at == 1:
            made.record(262, top + 80, "39", "orange")
            made.line([(246, top + 80), (114, top + 80)], "orange", arrow=True)
            for x, epoch in ((614, "40"), (652, "41")):
                made.record(x, top + 80, epoch, "blue", waits=True)
            made.text(402, top + 85, "bin 91: not here yet", "soft", size=12)
        elif at == 2:
            for x in (272, 318, 356, 402):
                made.box(x, top + 66, 26, 28, "", "green")
            made.line([(434, top + 80), (500, top + 80)], "green", arrow=True)
            made.line([(206, top + 80), (266, top + 80)], "green")
            made.text(32, top + 85, "bin 91: states, timers", "green", size=13)
            for x, epoch in ((614, "40"), (652, "41")):
                made.record(x, top + 80, epoch, "blue", waits=True)
        else:
            made.box(402, top + 62, 76, 36, "bin 91", "green", bold=True)
            for x, epoch in ((614, "41"), (568, "40")):
                made.record(x, top + 80, epoch, "blue")
            made.line([(550, top + 80), (484, top + 80)], "blue", arrow=True)
            made.text(32, top + 85, "no longer has the bin", "soft", size=12)
    return made


def membership() -> Picture:
    """A process that joins, and one that leaves."""
    made = Picture(
        "membership", 294, "Worker 2 joins and worker 0 leaves",
        "Time goes to the right. Worker 2 starts, learns the job's progress and routing table, becomes a member "
        "without bins, and then receives bins of the others one by one. Later the bins of worker 0 move to the others; "
        "it finishes the records that it holds, and ends. Worker 1 processes records all the time.",
    )  # fmt: skip
    for top, worker, color in ((58, 1, "orange"), (118, 0, "blue"), (178, 2, "green")):
        made.text(20, top + 23, f"worker {worker}", color, bold=True)
    made.box(104, 58, 576, 36, color="orange")
    made.text(160, 81, "processes records", "orange", size=13)
    made.box(104, 118, 376, 36, color="blue")
    made.text(160, 141, "processes records", "blue", size=13)
    made.box(484, 118, 112, 36, "finishes", "blue", size=13, dashed=True)
    made.text(606, 141, "ended", "soft", size=13)
    made.box(144, 178, 86, 36, "starts", "soft", size=13, dashed=True)
    made.box(234, 178, 86, 36, "no bins", "green", size=13, dashed=True)
    made.box(324, 178, 356, 36, color="green")
    made.text(500, 201, "processes records", "green", size=13)
    made.text(104, 34, "add-workers 1 --balance", "violet", bold=True)
    made.line([(146, 42), (146, 174)], "violet", dashed=True)
    made.text(392, 34, "remove-workers --id 0", "violet", bold=True)
    made.line([(412, 42), (412, 114)], "violet", dashed=True)
    for x, color, start, end in ((330, "blue", 156, 174), (346, "orange", 96, 174), (362, "blue", 156, 174),
                                 (378, "orange", 96, 174), (428, "blue", 116, 98), (444, "blue", 156, 174),
                                 (460, "blue", 116, 98)):    # fmt: skip
        made.line([(x, start), (x, end)], color, width=1.4, arrow=True)
    made.text(324, 236, "bins move to worker 2,\none by one", "soft", size=12)
    made.text(312, 236, "has the progress and\nthe routing table", "soft", anchor="end", size=12)
    made.text(510, 236, "the bins of worker 0\nmove to the others", "soft", size=12)
    made.line([(60, 274), (680, 274)], arrow=True)
    made.text(20, 278, "time", "soft", size=12)
    return made


def checkpoint() -> Picture:
    """A checkpoint as of one epoch."""
    made = Picture(
        "checkpoint", 330, "A checkpoint at epoch 12",
        "Each worker cuts its state when it is about to apply the first record of epoch 12 or later, at its own moment "
        "and without waiting for the others. The cuts, the positions of the inputs and the length of the output, all "
        "as of epoch 12, become one commit. A restart continues from there.",
    )  # fmt: skip
    for worker, (color, top, epochs) in enumerate((
        ("blue", 66, (10, 10, 11, 11, 12, 12, 13)),
        ("orange", 146, (10, 11, 11, 12, 13, 13, 14)),
    )):  # fmt: skip
        made.text(20, top - 4, f"worker {worker}", color, bold=True)
        made.text(20, top + 14, "applies", "soft", size=12)
        made.line([(104, top), (680, top)], color, width=1.2)
        for at, epoch in enumerate(epochs):
            made.record(134 + at * 80, top, str(epoch), color if epoch < 12 else "violet")
    made.text(20, 28, "before epoch 12: in the checkpoint", "green", bold=True)
    made.text(680, 28, "from epoch 12 on: read again after a restart", "violet", anchor="end", bold=True)
    made.line([(414, 38), (414, 96), (334, 116), (334, 182)], "green", width=3)
    made.text(424, 104, "the cut: each worker makes its own", "green", size=13)
    for x, width, words in ((20, 236, "states and timers\nof all bins"), (268, 200, "position in\neach input"),
                            (480, 200, "length of\neach output")):    # fmt: skip
        made.box(x, 206, width, 46, words, "green", size=13)
    made.line([(334, 184), (334, 202)], "green", width=2, arrow=True)
    made.line([(20, 266), (680, 266)], "green", width=2)
    made.box(150, 278, 400, 36, "one commit: all of it counts, or nothing", "green", bold=True)
    return made


def watermark() -> Picture:
    """The watermark of two files."""
    made = Picture(
        "watermark", 262, "The watermark of two files, with out_of_order=30",
        "File a.jsonl was read up to the timestamp 1090, less 30 is 1060. File b.jsonl was read up to 1045, less 30 is "
        "1015. The watermark is the smaller one, 1015. The window from 960 to 1020 stays open until b.jsonl has a "
        "timestamp of 1050 or more.",
    )  # fmt: skip

    def at(timestamp: int) -> float:
        return 110 + (timestamp - 960) * 3.9

    for start in (960, 1020, 1080):
        end = min(at(start + 60), 682)
        made.box(at(start), 22, end - at(start) - 2, 30, f"window {start} to {start + 60}" if end < 682 else "1080 …",
                 "violet" if start == 960 else "soft", size=12, hollow=start != 960)    # fmt: skip
    for top, file, color, stamps in ((92, "a.jsonl", "blue", (1000, 1020, 1010, 1090)),
                                     (164, "b.jsonl", "orange", (1005, 1045))):    # fmt: skip
        made.text(20, top + 5, file, color, bold=True)
        made.line([(100, top), (680, top)], "edge", width=1.2)
        for stamp in stamps:
            made.box(at(stamp) - 18, top - 13, 36, 26, str(stamp), color, size=11, bold=stamp == max(stamps))
        place = at(max(stamps) - 30)
        made.line([(at(max(stamps)), top + 15), (at(max(stamps)), top + 26), (place, top + 26)], color, arrow=True)
        made.text((at(max(stamps)) + place) / 2, top + 41, f"less 30: {max(stamps) - 30}", color, anchor="middle",
                  size=12)    # fmt: skip
    made.line([(at(1015), 60), (at(1015), 222)], "violet", width=3)
    made.text(at(1015), 242, "watermark 1015: the window 960 to 1020 is still open", "violet", anchor="middle",
              bold=True, size=13)    # fmt: skip
    return made


def lateness() -> Picture:
    """Which records of one file are late."""
    made = Picture(
        "lateness", 256, "Late records are decided within their own file",
        "One file has the timestamps 1000, 1020, 1010, 1090 and 1015. The bound of a record is the greatest timestamp "
        "before it, less 30: none, 970, 990, 990 and 1060. The last record belongs to the window that ends at 1020, "
        "and its bound of 1060 has passed that end, so it is late. Other files, and the speed, change nothing.",
    )  # fmt: skip
    stamps = (1000, 1020, 1010, 1090, 1015)
    for y, words in ((63, "timestamp"), (107, "window ends"), (151, "bound"), (199, "verdict")):
        made.text(20, y, words, "soft")
    made.text(20, 28, "a.jsonl, in the order of its lines; out_of_order=30, windows of 60", bold=True)
    greatest: int | None = None
    for at, stamp in enumerate(stamps):
        x = 176 + at * 112
        bound = None if greatest is None else greatest - 30
        end = stamp // 60 * 60 + 60
        is_late = bound is not None and bound >= end
        color = "orange" if is_late else "blue"
        made.box(x - 34, 42, 68, 32, str(stamp), color, bold=True)
        made.text(x, 107, str(end), anchor="middle")
        made.text(x, 151, "none" if bound is None else f"{bound} {'≥' if is_late else '<'} {end}", color,
                  anchor="middle", bold=True)    # fmt: skip
        made.box(x - 44, 178, 88, 32, "late" if is_late else "counts", color if is_late else "green", bold=True)
        greatest = stamp if greatest is None else max(greatest, stamp)
    made.text(20, 240, "The same file gives the same late records, however fast it is read, and by any worker.", "soft",
              size=13)    # fmt: skip
    return made


def pictures() -> Iterator[Picture]:
    """Yield all pictures."""
    yield from (frontiers(), bins(), operator(), move(), membership(), checkpoint(), watermark(), lateness())


def main() -> int:
    """Write all pictures."""
    for picture in pictures():
        (FOLDER / f"{picture.name}.svg").write_text(picture.svg(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
