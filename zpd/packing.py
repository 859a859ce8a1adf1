"""Pure. Room 3: short prompts of several requests may go around the ring as one *pack*.

A stage computes the ops of a pack at once: one product for the rows of all, attention for each
sequence alone. "auto" joins only what has the same bits alone, as each stage measures of its own
matrices; "inexact" joins all, and the last bits of an answer then depend on its company.
"""

AUTO, OFF, INEXACT = MODES = ("auto", "off", "inexact")
