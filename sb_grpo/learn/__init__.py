"""From a rollout to new weights: minibatches, gradients, captured execution."""
