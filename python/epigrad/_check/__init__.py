"""``python -m epigrad check``: random problems against an oracle in float64.

In reading order:

    formulas     every kind's value in float64
    bounds       values with bounds of their errors
    parts        activations, gates and their gradients
    products     layers, blocks and groups: their tensors, and what their results should be
    elementwise  the other operations, likewise
    operations   the table of all
    layouts      tensors in every layout, inside of guards
    values       numbers that are not normal
    problem      a problem: written as text, read again
    drawing      random problems
    c_structs    the structs of the C interface
    c_interface  calls by the C interface
    plan_calls   calls by plans
    calls        the ways to call an operation
    spoilable    calls that may be changed before they run
    defects      what can be wrong with a call
    modes        what is asked of a problem
    search       draws problems and shrinks those that fail
    watch        tells of the problem at which the process ended
"""
