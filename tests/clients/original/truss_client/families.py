"""Functions and commands of `truss` for what the original's product has besides, and those that call nobody."""

FUNCTIONS: dict[str, tuple[str, ...]] = {
    "chains": (
        "deploy_chain_atomic",
        "get_chains",
        "get_chain_deployments",
        "get_chainlets_by_deployment_id",
        "delete_chain",
        "delete_chain_deployment",
        "deactivate_chain_deployment",
        "get_chain_s3_upload_credentials",
    ),
    "loops": (
        "create_loops_run",
        "create_loops_session",
        "deactivate_loops_deployment",
        "deactivate_loops_run",
        "get_loops_deployment",
        "get_loops_deployment_logs",
        "get_loops_run",
        "get_loops_sampler",
        "get_loops_session",
        "list_loops_checkpoint_files",
        "list_loops_checkpoints",
        "list_loops_deployments",
        "list_loops_runs",
        "list_loops_samplers",
    ),
    "builds of models": (
        "create_bis_llm_model",
        "create_bis_llm_model_version",
        "create_development_model_from_truss",
        "create_model_from_truss",
        "create_model_version_from_inference_template",
        "create_model_version_from_truss",
        "get_deployment_download_url",
        "get_truss_watch_state",
        "model_s3_upload_credentials",
        "patch_draft_truss_two_step",
        "sync_draft_truss",
        "validate_truss",
    ),
    "models in GraphQL": (
        "get_instance_types",
        "get_model",
        "get_model_by_id",
        "get_model_version_by_id",
        "get_model_with_versions_by_id",
        "get_models_for_watch",
        "models",
    ),
    "organizations": (
        "get_aws_assume_role_info",
        "get_organization_id",
    ),
}
"""The functions by family. Each is called with arguments that say nothing, and must be told that it is not served."""
COMMANDS: dict[str, tuple[str, ...]] = {
    "chains": ("chains",),
    "loops": ("loops",),
    "builds of models": ("push", "watch", "download", "image", "container", "run-python", "train deploy_checkpoints"),
    "models in GraphQL": ("predict",),
    "shells on the machines of training": ("ssh", "train workstation"),
    "the tool's own files, accounts and versions": (
        "auth",
        "cleanup",
        "configure",
        "init",
        "login",
        "migrate",
        "train init",
        "upgrade",
    ),
}
"""The commands by family, or the group that they are of. None is run."""


def family_of(families: dict[str, tuple[str, ...]], name: str) -> str | None:
    """Return the family of what is not ours; None for what must be exercised."""
    for family, members in families.items():
        if any(name == member or name.startswith(f"{member} ") for member in members):
            return family
    return None
