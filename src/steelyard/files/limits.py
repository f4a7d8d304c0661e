"""How much is read from outside. Each bound is several times what real files have, and what fits in memory."""

from __future__ import annotations

MOST_BYTES = 1 << 30  # of a file of lines, unpacked: ten million requests, the most of a scenario, at 100 bytes each
MOST_RATIO = 100  # unpacked bytes for each packed one: recorded data have 3 to 30, and gzip cannot do more than 1,032
SMALL_BYTES = 1 << 26  # up to which a file may be packed as well as it likes
MOST_MEMBERS = 100_000  # of a gzip file: bgzip makes one for each 64 KiB, or 16,384 of 1 GiB
MOST_LINES = 20_000_000  # two for each of ten million requests
MOST_LINE_BYTES = 1 << 24  # a prompt of a million tokens, written as token ids, has 7 MB
MOST_DOCUMENT_BYTES = 1 << 24  # of a file that is parsed as a whole: 200,000 requests, or 550 MB of empty lists
MOST_SCENARIO_BYTES = 1 << 20  # of YAML, of which a second parses about as much; examples have 1 kB
MOST_VALUES = 200_000  # of a YAML file, aliases counted as often as they are used
MOST_DEPTH = 64  # levels of nesting; ours have 10
MOST_DIGITS = 40  # of a whole number: 128 bits have 39
MOST_CELLS = 1 << 30  # rows times columns of a Parquet file: ten million requests with 40 columns are 400 million
MOST_FOLDERS = 10_000  # that are searched for profiles or captures; a profile of 50 models has 400
