"""Floor 6: the assembly. Settings -> task, model, engines, controller, run directory; `train` and `resume`.

Importing this package loads no torch.
"""
