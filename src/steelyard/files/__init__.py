"""The boundary: everything read from outside passes the readers of this package, which bound what they accept.

``limits`` has the bounds and their reasons, ``reading`` bytes and text, ``jsontext``, ``yamltext`` and ``csvtext`` what
text means. The package imports nothing of ours but errors.
"""
