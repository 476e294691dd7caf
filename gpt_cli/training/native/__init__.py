"""A CPU's own way through a training step: compiled code in place of torch's operations, one by one.

    network.c    the loss of a GPT and its gradient; layers.h and attention.h are its parts
    muon.c       Muon's orthogonalisation
    numeric.h       the type that products read, and the products; threads.h: who does what
    sources      what is compiled, known without torch; library: loads it
    network      gives a model to network.c, and takes its gradients back; muon: likewise
    choice       whether a model is trained so

The definition of all of it is `gpt_cli.model` under autograd and `gpt_cli.training.muon`; tests hold the two together.
"""
