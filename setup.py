"""Builds the packages: the library, and the folder ``zoo`` as ``sb_grpo_zoo``, which nobody else's ``zoo`` can clash with."""

import re
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

ZOO = "sb_grpo_zoo"
HERE = Path(__file__).parent
config = ConfigParser()
config.read(HERE / "setup.cfg")
#: Address of the repository: ``url`` in setup.cfg is the one place to fill in.
URL = config["metadata"]["url"]


def absolute(readme: str) -> str:
    """Turn the README's relative links and pictures into addresses of the repository, as PyPI has only the text."""
    pictures = re.sub(r'(src|srcset)="(?![a-z]+:)', rf'\1="{URL}/raw/main/', readme)
    return re.sub(r"\]\((?![a-z]+:|#)", f"]({URL}/blob/main/", pictures)


setup(
    packages=[*find_packages(include=["sb_grpo", "sb_grpo.*"]), ZOO, *(f"{ZOO}.{name}" for name in find_packages("zoo"))],
    package_dir={ZOO: "zoo"},
    long_description=absolute((HERE / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
    project_urls={
        "Documentation": f"{URL}/blob/main/docs/index.md",
        "Changelog": f"{URL}/blob/main/CHANGELOG.md",
        "Issues": f"{URL}/issues",
    },
)
