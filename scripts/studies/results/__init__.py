"""The results page: GRPO against PPO with its critic, and the ablations, from raw result files."""
