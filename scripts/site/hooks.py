"""MkDocs hooks: pages for link targets outside of ``docs/``, links in docstrings, files for the explorer.

The Markdown pages link to files of the repository (``../zoo/hyperparams/grpo.yml``) and to folders of raw data, as one reads
them in a checkout. A site has neither, so each such target becomes a page of its own: the file's text, or the folder's list.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from scripts.site.formulas import with_mathml
from scripts.site.sensitivity import surfaces
from zoo.dashboard import ASSETS, PLOTLY

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NOTEBOOK = re.compile(r"\]\((notebooks/[\w.]+\.ipynb)\)")
#: Target of a Markdown link, without its anchor.
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
#: A role of Sphinx in the HTML of a docstring: ``:class:`name```, ``:class:`~name```, ``:class:`title <name>```.
ROLE = re.compile(
    r":(?:class|func|meth|mod|attr|data):<code>(?:(?P<title>[^<&]+?) &lt;)?(?P<short>~?)(?P<name>[\w.]+)(?:&gt;)?</code>"
)
#: A number and its spread, which no line of a table should part.
SPREAD = re.compile(r"(?<=\d) ± (?=\d)")
PICTURE = re.compile(r'<img [^>]*src="(?P<src>[^":]+\.(?:png|svg|gif))"[^>]*>')
LANGUAGES = {".py": "python", ".yml": "yaml", ".sh": "bash", ".cfg": "ini", ".toml": "toml", ".md": "markdown"}
#: Pages that the search leaves out: they repeat the words of all others.
NOT_SEARCHED = ("changelog.md", "data/", "developers.md", "studies/")
#: Files that the explorer shares with the pages of runs.
SHARED = ("dom.js", "charts.js", "page.css")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the changelog, a page per target outside of the pages, and the explorer's library and figures."""
    changelog = (ROOT / "CHANGELOG.md").read_text()
    files.append(File.generated(config, "changelog.md", content=changelog, inclusion=InclusionLevel.NOT_IN_NAV))
    for target in sorted({*targets(files)} - {"CHANGELOG.md"}):
        files.append(File.generated(config, page_of(target), content=text_of(target), inclusion=InclusionLevel.NOT_IN_NAV))
    for path in (PLOTLY, *(ASSETS / name for name in SHARED)):
        files.append(File.generated(config, f"explorer/{path.name}", abs_src_path=str(path)))
    files.append(File.generated(config, "explorer/data/sensitivity.json", content=json.dumps(surfaces(), allow_nan=False)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to such targets lead to their pages, and keep studies and changelog out of the search."""
    if page.file.src_uri.startswith(NOT_SEARCHED):
        page.meta["search"] = {"exclude": True}
    here = posixpath.dirname(page.file.src_uri)

    def to_page(target: str) -> str:
        return posixpath.relpath(page_of(target), here or ".")

    whole = SPREAD.sub("\u00a0±\u00a0", markdown)
    return NOTEBOOK.sub(with_colab, relinked(whole, here, to_page))


def with_colab(link: re.Match[str]) -> str:
    """Add to a link to a notebook one that opens it in Google Colab, by the repository's address in setup.cfg."""
    metadata = ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    colab = metadata["metadata"]["url"].replace("//github.com", "//colab.research.google.com/github")
    return f"{link[0]} ([Colab]({colab}/blob/main/docs/{link[1]}))"


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let the roles of docstrings (``:class:`~sb_grpo.Rollout```) be links, and draw the formulas.

    Pictures become links to themselves: a telephone shows those with many panels too small to read.
    """
    return PICTURE.sub(r'<a class="picture" href="\g<src>">\g<0></a>', ROLE.sub(as_link, with_mathml(html)))


def as_link(role: re.Match[str]) -> str:
    """Link to a role's target, with its title or the last part of the name."""
    title = role["title"]
    name = role["name"]
    full = name if name.startswith("sb_grpo.") else f"sb_grpo.{name}"
    shown = title or (name.rsplit(".", 1)[-1] if role["short"] else name)
    return f'<autoref optional identifier="{full}"><code>{shown}</code></autoref>'


def targets(files: Files) -> Iterator[str]:
    """Paths in the repository that the pages link to and that are no files of the site."""
    for file in files.documentation_pages():
        found: list[str] = []
        relinked(file.content_string, posixpath.dirname(file.src_uri), lambda target: str(found.append(target)))  # noqa: B023
        yield from found


def relinked(markdown: str, here: str, to_page: Callable[[str], str]) -> str:
    """Replace links to files outside of ``docs/`` and to folders in Markdown.

    :param here: folder of the page within ``docs/``
    :param to_page: from a path in the repository to the link's target
    """

    def replaced(match: re.Match[str]) -> str:
        before, link, after = match.groups()
        if re.match(r"[a-z]+:", link):
            return match[0]
        target = posixpath.normpath(posixpath.join("docs", here, link))
        path = ROOT / target
        on_site = path.is_file() and target.startswith("docs/") and not target.startswith("docs/examples/")
        if on_site or not path.exists():  # MkDocs reports missing targets
            return match[0]
        return f"{before}{to_page(target)}{after if path.is_dir() else ')'}"

    return LINK.sub(replaced, markdown)


def page_of(target: str) -> str:
    """Path of the page of a file or folder of the repository."""
    return "changelog.md" if target == "CHANGELOG.md" else f"files/{target}.md"


def text_of(target: str) -> str:
    """Text of the page of a file (its content) or of a folder (its list)."""
    path = ROOT / target
    head = f"---\ntitle: {path.name}\nsearch:\n  exclude: true\n---\n\n# `{target}`\n\n"
    if path.is_file():
        return f"{head}````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}\n````\n"
    rows = [f"| `{p.relative_to(path)}` | {p.stat().st_size:,} |" for p in sorted(path.rglob("*")) if p.is_file()]
    return f"{head}Raw files in the checkout.\n\n| file | bytes |\n|---|---|\n" + "\n".join(rows) + "\n"


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Let the explorer use the width of the window."""
    wide: Any = page.meta.get("wide")
    return output.replace("<body ", '<body class="wide" ', 1) if wide else output
