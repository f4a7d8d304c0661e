"""`python -m steelyard.profile OUT.jsonl [SECONDS]`: measure this machine's GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from steelyard.profile.grid import points
from steelyard.profile.run import about, measure

out = Path(sys.argv[1])
seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 600.0
families = set(sys.argv[3].split(",")) if len(sys.argv) > 3 else None
chosen = [point for point in points() if families is None or point["op"] in families]
print(json.dumps(about()))
print(f"{measure(chosen, out, seconds)} of {len(chosen)} points measured")
