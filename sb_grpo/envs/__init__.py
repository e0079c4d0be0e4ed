"""Everything that touches an environment's reset or state."""
