"""The boundary: everything read from outside passes the readers of this package, which bound what they accept, and
everything written passes its writers, which leave files whole and harm no others.

``limits`` has the bounds and their reasons, ``reading`` bytes and text, ``jsontext``, ``yamltext`` and ``csvtext`` what
text means. ``writing`` has the writers of files, ``folder`` that of result folders. The package imports nothing of ours
but errors.
"""
