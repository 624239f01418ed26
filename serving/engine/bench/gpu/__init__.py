"""A GPU beside its own limits: kernels are checked, then the engine is measured on models whose weights are made up."""
