"""Value of the noise that members of a group share: docs/studies/paired.md and docs/when_groups_win.md."""
