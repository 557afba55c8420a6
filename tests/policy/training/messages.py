"""Hypothesis strategies for everything that trainers and control tell each other."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from policy.training.artifacts import Artifact, ArtifactPart
from policy.training.caches import FILE_TYPES, CacheEntry, CacheSummary
from policy.training.job_spec import CacheSpec, JobSpec, LoadRef, LoadSpec, SecretRef, SessionSpec
from policy.training.node_use import NodeSample
from policy.training.reports import (
    BackendReport,
    CheckpointFile,
    CheckpointReport,
    Claimed,
    JobReport,
    Load,
    MetricPoint,
    NodeState,
    OutputBatch,
    OutputLine,
    Restore,
    WantedJob,
    WantedState,
    WantedTerminal,
)
from policy.training.resources import Host, NodeResources
from policy.training.statuses import Outcome, Phase, Wanted
from policy.training.weights import FilePatterns, Weights, WeightsSpec

texts = st.text(max_size=8)
counts = st.integers(0, 2**53)
maybe_texts = st.none() | texts


def few(one: SearchStrategy[Any]) -> SearchStrategy[tuple[Any, ...]]:
    return st.lists(one, max_size=3).map(tuple)


resources = st.builds(NodeResources, counts, counts, counts, maybe_texts)
hosts = st.builds(
    Host,
    texts,
    counts,
    counts,
    counts,
    st.dictionaries(texts, counts, max_size=2),
    st.dictionaries(texts, counts, max_size=2),
)
patterns = st.builds(FilePatterns, few(texts), few(texts))
weights = st.builds(Weights, texts, texts, maybe_texts, patterns)
specs = st.builds(
    JobSpec,
    start_commands=few(texts),
    resources=resources,
    node_count=counts,
    environment=st.dictionaries(texts, texts | st.builds(SecretRef, texts), max_size=3),
    working_directory=maybe_texts,
    checkpoint_path=maybe_texts,
    base_image=maybe_texts,
    session=st.none() | st.builds(SessionSpec, texts, counts),
    checkpoint_max_gib=st.none() | counts,
    cache=st.none() | st.builds(CacheSpec, st.booleans()),
    load=st.none() | st.builds(LoadSpec, few(st.builds(LoadRef, maybe_texts, maybe_texts, maybe_texts)), texts),
    artifacts=few(texts),
    weights=few(st.builds(WeightsSpec, texts, texts, maybe_texts, patterns)),
)
nodes = st.builds(NodeState, counts, texts, st.none() | st.integers(-64, 255))
job_reports = st.builds(
    JobReport,
    texts,
    counts,
    st.sampled_from(Phase),
    st.none() | st.sampled_from(Outcome),
    maybe_texts,
    few(nodes),
    st.booleans(),
    st.booleans(),
)
samples = st.builds(NodeSample, texts, counts, counts, counts, counts, counts, st.none() | counts, st.none() | counts)
backend_reports = st.builds(
    BackendReport, texts, texts, maybe_texts, st.booleans(), few(hosts), few(job_reports), few(samples)
)
wanted_jobs = st.builds(
    WantedJob,
    texts,
    counts,
    texts,
    st.sampled_from(Wanted),
    st.integers(-(2**31), 2**31),
    texts,
    counts,
    resources,
    counts,
)
wanted_terminals = st.builds(WantedTerminal, texts, texts, counts, counts, texts)
wanted_states = st.builds(WantedState, few(wanted_jobs), few(wanted_terminals), few(texts))
files = st.builds(CheckpointFile, texts, counts, texts)
checkpoints = st.builds(
    CheckpointReport,
    texts,
    texts,
    counts,
    texts,
    maybe_texts,
    st.none() | st.dictionaries(texts, counts | texts, max_size=2),
    counts,
    st.none() | few(files),
)
restores = st.builds(Restore, texts, texts, few(files))
loads = st.builds(Load, texts, restores)
artifacts = st.builds(Artifact, texts, few(st.builds(ArtifactPart, texts, counts, texts)))
claims = st.builds(Claimed, texts, counts, specs, texts, st.none() | restores, *[texts] * 4, few(loads), few(artifacts))
lines = st.builds(OutputLine, counts, texts, texts)
metrics = st.builds(
    MetricPoint, texts, counts, st.none() | st.integers(-9, 9), st.floats(allow_nan=False, allow_infinity=False)
)
batches = st.builds(OutputBatch, counts, counts, counts, counts, few(lines), few(metrics))

entries = st.builds(CacheEntry, texts, counts, counts, st.sampled_from(FILE_TYPES), texts)
summaries = st.builds(CacheSummary, texts, counts, few(entries))

MESSAGES: dict[type, SearchStrategy[Any]] = {
    Host: hosts,
    NodeResources: resources,
    JobSpec: specs,
    Weights: weights,
    NodeState: nodes,
    JobReport: job_reports,
    BackendReport: backend_reports,
    WantedJob: wanted_jobs,
    WantedTerminal: wanted_terminals,
    WantedState: wanted_states,
    CheckpointFile: files,
    CheckpointReport: checkpoints,
    Restore: restores,
    Load: loads,
    Artifact: artifacts,
    Claimed: claims,
    OutputLine: lines,
    MetricPoint: metrics,
    OutputBatch: batches,
    CacheSummary: summaries,
}
"""Strategies by type of message. Each type has `to_wire` and `from_wire`."""
