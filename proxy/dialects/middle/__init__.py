"""The model in the middle of every translation: what a call asks and what an answer says, in no vendor's dialect.

Pure. Each dialect has a reader into these values and a writer from them, and knows no other dialect. A reader or a
writer refuses what it cannot keep (`UntranslatableError`); it must never weaken a call silently.
"""
