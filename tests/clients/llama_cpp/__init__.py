"""A real llama.cpp server with a tiny random model, as a target of `make clients`.

`build.py` compiles the server once from pinned sources, `random_model.py` writes the model, `server.py` runs both.
"""
