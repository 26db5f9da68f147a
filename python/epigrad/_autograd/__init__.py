"""Autograd over the calls of the core. Nothing here is public.

In reading order:

    functions  the two `torch.autograd.Function`s, and `Gradient`, which is differentiable again
    formulas   operations without a product in PyTorch operations, of which higher orders are made
    layers     the same for layers and two-layer blocks
    adapted    the same for layers with adapters
    grouped    the same for layers with groups of rows, and mixtures of experts
    engine     which gradients a backward that is under way is for
    main_grad  gradients that are added to a parameter's ``main_grad``
"""
