"""The local page (`steelyard ui`): scenarios, runs, what-if, searches, post-training and live runs of one folder.

``serve`` starts the server, ``guard`` decides who may ask, ``routes`` has what can be asked. Everything shown is read
from the folder; runs are processes of their own. The front end is built from `ui/` of the repository into ``static``.
"""
