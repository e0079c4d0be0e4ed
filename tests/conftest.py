"""One torch thread per process: with more, small networks on a busy machine run 8 to 60 times slower."""

import torch as th

th.set_num_threads(1)
