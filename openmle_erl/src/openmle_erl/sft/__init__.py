"""The SFT corpus: sampling, choosing, checking and writing the examples that a model is trained on before RL."""
