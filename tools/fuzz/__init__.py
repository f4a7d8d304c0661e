"""Fuzzing: hostile and near-valid inputs for every command and every file format (docs/fuzzing.md).

A case is a command line and the files it finds. `cases` makes one from a random number, `nursery` runs it in a child
process with limits, `verdict` judges what came of it, `shrink` makes a failing case small, and `campaign` does this for
thousands of them (`make fuzz`).
"""
