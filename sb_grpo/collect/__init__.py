"""From episodes and envs to a rollout: groups, loops, extra fields, buffers."""
