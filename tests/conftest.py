"""For every test: the numeric plan, set before anything imports torch."""

import os
import sys

assert "torch" not in sys.modules
os.environ["MKL_CBWR"] = "AUTO,STRICT"
os.environ["OMP_NUM_THREADS"] = "1"
