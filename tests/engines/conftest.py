"""One thread: the models are tiny, and the cores are shared with the other test workers."""

import torch

torch.set_num_threads(1)
