"""How fast this machine trains a model, and where the time goes: `gpt bench`."""
