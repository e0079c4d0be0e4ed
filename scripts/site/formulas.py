"""Formulas of the pages as MathML, made when the site is built: browsers draw it without a script or a request."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

#: Arithmatex leaves LaTeX as text: ``\\(...\\)`` in a span, ``\\[...\\]`` in a block.
FORMULA = re.compile(r'<(?P<tag>span|div) class="arithmatex">\\(?:\(|\[)(?P<latex>.*?)\\(?:\)|\])</(?P=tag)>', re.DOTALL)


def with_mathml(page: str) -> str:
    """HTML with its LaTeX formulas replaced by MathML.

    :param page: HTML as the extension ``pymdownx.arithmatex`` with ``generic: true`` makes it
    """
    return FORMULA.sub(_mathml, page)


def _mathml(found: re.Match[str]) -> str:
    block = found["tag"] == "div"
    latex = " ".join(html.unescape(found["latex"]).split())
    return f'<{found["tag"]} class="formula">{convert(latex, display="block" if block else "inline")}</{found["tag"]}>'
