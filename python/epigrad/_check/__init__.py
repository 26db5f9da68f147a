"""``python -m epigrad check``: random problems against an oracle in float64.

In reading order; a module imports those before it:

    operations   each operation: its sizes, the shapes of its tensors
    layouts      tensors in every layout, inside of guards
    values       numbers that are not normal
    problem      a problem: written as text, read again
    drawing      random problems
    formulas     every kind's value in float64
    turns        where a formula turns
    bounds       values with bounds of their errors
    expected     what output and gradients should be
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
