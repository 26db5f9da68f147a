"""Measurements that records keep: ``python -m benchmarks --help``.

Each subject says what its rows are: what is computed, beside what, and which physical ceiling. The
runner is that of ``python -m epigrad bench`` (`epigrad.cli.runner`). In reading order:

    cpu         each operation over sizes, threads and kinds
    cuda        operations on a GPU, with ceilings, memory and goals
    cuda_rows   what they are
    webgpu      operations on arrays of an adapter
    models      training steps of models, also by Liger and as CUDA graphs
    experts     transformers' own mixtures of experts, and SonicMoE's shapes
    lora        blocks and experts with LoRA, beside PEFT's own
    second      a step of a network that learns from its gradient
    sonicmoe    its experts as one of transformers' implementations
    ways        the ways to compute products with epilogues on Hopper
    invariance  layers whose rows do not depend on each other
    operations  pairs of functions that only records have
    record      a subject with tables or a picture of its own
    timing      bursts, and steps with the host's part
    pictures    curves, bars of steps and of experts
    turns       calls of several builds, in turns
"""
