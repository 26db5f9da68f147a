"""Autograd over the calls of the core. Nothing here is public.

In reading order:

    functions     a `torch.autograd.Function` for each operation, and `Gradient`, which is
                  differentiable again
    gated_linear  the same for the gated layer with two weights
    feedforward   the same for the two-layer blocks
    grouped       the same for layers with groups of rows, and mixtures of experts
    engine        which gradients a backward that is under way is for
    main_grad     gradients that are added to a parameter's ``main_grad``
    formulas      the maths in PyTorch operations, of which higher orders are made
"""
