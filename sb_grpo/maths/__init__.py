"""Pure functions of tensors: returns, estimators, losses, regressions. No environment and no policy."""
