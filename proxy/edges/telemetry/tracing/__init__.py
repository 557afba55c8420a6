"""The spans of a call, as a worker records them. Imported only where `TOLLGATE_TRACES` asks for traces.

Promises that no span holds a key, a credential or content, and that calls cost nothing more while traces are off: the
parts here wrap those of the pipeline, which knows nothing of them.
"""
