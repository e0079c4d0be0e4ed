"""From jobs and envs to a rollout: slots, loops, columns, buffers."""
