"""The page of the study and the table of the users' page, from runs, measurements and prose that are committed."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from scripts.studies.common.runs import DATA, DOCS
from scripts.studies.paired import default, tables
from scripts.studies.paired.default import Default, Learning
from scripts.studies.paired.measure import ROLLOUT, RULES, VARIANCE
from scripts.studies.paired.pictures import draw_curves, draw_lead
from scripts.studies.paired.study import RUNS, Row, Study, load, rows
from scripts.studies.paired.verdicts import verdicts

TEXTS = DATA / "paired.yml"
PAGE = DOCS / "studies" / "paired.md"
USERS = DOCS / "when_groups_win.md"
IMAGES = PAGE.parent / "img"
USERS_IMAGES = DOCS / "img"
MARKS = "<!-- table: python -m scripts.studies.paired -->", "<!-- end of table -->"
#: As the commands name it, from the root of the checkout.
FOLDER = RUNS.relative_to(DOCS.parent).as_posix()

#: Task -> measured values.
Measured = dict[str, dict[str, Any]]


def page(
    study: Study,
    found: Sequence[Row],
    rules: Measured,
    variance: Measured,
    defaults: Sequence[Default],
    minigrid: Sequence[Learning],
    texts: dict[str, Any],
) -> str:
    """Make the page as Markdown.

    :param found: a row per task
    :param defaults: with pairs as the default, per label
    :param minigrid: the same on tasks of MiniGrid
    :param rules: returns of the known rules
    :param variance: variance that pairing removes
    :param texts: prose, by name
    """
    verdict = tables.verdict_table(verdicts(study, found, variance, defaults))
    parts = [
        "# Study: paired groups on input-driven tasks", "Made by `python -m scripts.studies.paired`; do not edit.",
        texts["intro"], "```bash\n" + "\n".join(commands(study)) + "\n```",
        "## Wanted and found", verdict, texts["verdict"],
        "## What has run", tables.seeds_table(study), texts["status"],
        "![Learning curves per task](img/paired_curves.png)",
        "## Final returns", texts["final"], tables.final_table(study),
        "## Against PPO, task by task", texts["details"], tables.details_table(found),
        "## Probability of improvement", texts["improvement"], tables.improvement_table(study),
        "## Both searched", texts["searched"], tables.searched_table(study),
        "## One change at a time", texts["changes"], tables.ablation_table(study),
        "## Pairs where nothing asks for them", texts["default"], *map(tables.default_table, defaults),
        texts["minigrid"], tables.minigrid_table(minigrid),
        "## What pairing takes out", texts["variance"], tables.variance_table(variance),
        "## What it costs", texts["cost"], tables.cost_table(study),
        "## Known rules", texts["rules"], tables.rules_table(rules), "## What is left", texts["left"],
    ]  # fmt: skip
    return "\n\n".join(part.strip() for part in parts) + "\n"


def commands(study: Study) -> list[str]:
    """Distinct commands of the runs, with their folders; existing runs in a folder are not repeated."""
    runs = (run for of in study.runs.values() for label in of for run in of[label])
    return list(dict.fromkeys(re.sub(r"--out \S+", f"--out {FOLDER}", run.origin["command"]) for run in runs))


def users_page(before: str, study: Study, found: Sequence[Row]) -> str:
    """The users' page with the table between its marks made anew.

    :param before: the page as it is
    :param found: a row per task
    """
    head, _, rest = before.partition(MARKS[0])
    inside = f"{tables.short_table(found)}\n\n{tables.seeds_in_words(study)}"
    return f"{head}{MARKS[0]}\n\n{inside}\n\n{MARKS[1]}{rest.partition(MARKS[1])[2]}"


def make(files: Sequence[Path], page_file: Path, users_file: Path, images: Path, users_images: Path) -> None:
    """Write the page, the users' table, and the pictures.

    :param files: of the runs
    """
    study = load(files)
    rules, variance, rollout = (json.loads(file.read_text()) for file in (RULES, VARIANCE, ROLLOUT))
    found = rows(study, rules)
    texts = yaml.safe_load(TEXTS.read_text())
    page_file.write_text(page(study, found, rules, variance, default.load(), default.load_minigrid(), texts))
    users_file.write_text(users_page(users_file.read_text(), study, found))
    draw_curves(study, images / "paired_curves.png")
    draw_lead(study, rollout, users_images / "paired.png")
