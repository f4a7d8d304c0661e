"""How training differs from the single operators that cost sources time: one figure for each class of operator.

None belongs to one model, GPU or framework; `docs/training.md` compares what comes out with published step times.
"""

from __future__ import annotations

# Sources time matrices and attention in short runs. Training keeps a GPU at its power limit for hours and launches
# kernels one by one, so it reaches less: 0.80 to 0.84 in steps of a small Llama on one H200, 0.87 in published jobs on
# A100.
KEPT_UP = 0.85

# Attention's backward pass has five matrix multiplications for the forward pass's two, and FlashAttention-2 reports
# 0.85 of the forward rate for it.
ATTENTION_BACKWARD = 2.5 / 0.85

# Bytes that norms, activations and rotations move in their backward pass, for each in the forward pass: gradients are
# read as results were, inputs are read again.
ELEMENTWISE_BACKWARD = 1.5

# Bytes of a logit on its way to a log-probability: read in 16 bits, then two passes in 32 and the result.
LOSS_BYTES = 2 + 3 * 4

# Largest share of an exchange that arithmetic can hide: nothing runs beside the first or the last bucket.
HIDDEN_AT_MOST = 0.90

# Adam per weight: master weight and both moments read and written in 32 bits, gradient read twice (norm and update),
# 16-bit weight written.
ADAM_BYTES = 3 * 8 + 2 * 4 + 2
