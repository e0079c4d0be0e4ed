"""What the luck that members of a group share is worth: docs/studies/paired.md, and what docs/when_groups_win.md shows."""
