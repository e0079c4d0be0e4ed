"""Optional parts: groupings, group weights, exploration bonuses."""
