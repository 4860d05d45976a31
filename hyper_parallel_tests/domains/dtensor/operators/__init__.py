"""The operator matrix: each operator on distributed inputs is held to itself on the full ones, forward and backward.

A new operator is one line in the table of its family, `elementwise`, `products`, `reductions`, ..., and nothing else:

    Operator("addmm", torch.addmm, (normal("ij"), normal("ik"), normal("kj"))),

that is a name, the operator, and its inputs, a letter a dimension; equal letters are equal sizes. How the inputs are
placed follows from the letters (`table.Operator.placings`), and so do even, uneven and empty shards, their values
(`samples`) and what is compared (`checking`). What an engine is known to do wrong is in its expectations.
"""
