"""The packages: the library, and the folder ``zoo`` as ``sb_grpo_zoo``, which nobody else's ``zoo`` can clash with."""

from setuptools import find_packages, setup

ZOO = "sb_grpo_zoo"

setup(
    packages=[*find_packages(include=["sb_grpo", "sb_grpo.*"]), ZOO, *(f"{ZOO}.{name}" for name in find_packages("zoo"))],
    package_dir={ZOO: "zoo"},
)
