"""How a call reaches the core. Nothing here is public.

In reading order:

    call           one call of an operation: everything but its tensors
    values         classes whose instances never change, and `LowRank`, the update of a weight
    callables      which activation a module or a function computes
    tables         what Python knows of the core without loading it
    loader         loads the core on first use
    blocks         what the open ``with`` blocks of a thread chose
    selection      which backend runs
    invariance     `batch_invariant`: rows that do not depend on other rows
    torch_state    whether PyTorch has to see an operator, and what autocast casts
    wide           whether gradients may be float32 beside operands of 16 bits
    autocast_cache casts of parameters, kept while autocast is on
    checks         what the core cannot see of the arguments
    launcher       who computes a call: the loaded core, or PyTorch's dispatcher
    adapters       what low-rank updates of weights, and their scales, do to a call
    mixtures       mixtures of experts of which few slots select something
    stateless      calls without a graph
    lora           PEFT's LoRA as such updates, and what of it stays PEFT's
    projections    whether the weight of a layer may be read, or the layer has to be called
"""
