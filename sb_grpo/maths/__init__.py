"""Pure functions of tensors: returns, estimators, losses, regressions. No environment, no policy, no state but their own."""
