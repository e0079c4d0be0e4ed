"""Envs that are no longer needed: what they raise when they are closed undoes nothing of what was done in them."""

from __future__ import annotations

import sys
from typing import Any


def close(env: Any) -> None:
    """Close an env, or say on stderr why it could not be closed.

    :param env: an env or a VecEnv
    """
    try:
        env.close()
    except (EOFError, ConnectionError) as error:
        print(f"A worker of the env had died before it was closed: {error!r}", file=sys.stderr)
    except Exception as error:
        print(f"The env could not be closed: {type(error).__name__}: {error}", file=sys.stderr)
