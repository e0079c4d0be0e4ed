"""From a rollout to new weights: minibatches, gradients, compiled execution."""
