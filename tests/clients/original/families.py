"""Methods of the original's SDK for what its product has besides: Tollgate has no such paths, and shall not."""

FAMILIES: dict[str, tuple[str, ...]] = {
    "chains": ("chains",),
    "loops": ("loops", "teams_loops"),
    "grid": ("grid",),
    "sandboxes and images": ("sandbox", "image", "images", "preview"),
    "volumes": ("volumes",),
    "library": ("library", "explore_metadata"),
    "workspaces, teams' contents, users and regions": (
        "environment_groups",
        "organizations",
        "regions",
        "teams_api_keys",
        "teams_environment_groups",
        "teams_llm_models",
        "teams_models",
        "teams_regions",
        "token",
        "users",
    ),
    "billing, prices and audit logs": ("billing", "instance_type_prices", "audit_logs", "models_audit_logs"),
    "model APIs": ("model_apis",),
    "builds of models": (
        "llm_models",
        "models_deployments_download",
        "models_deployments_patches",
        "models_deployments_ssh_sign",
        "prepare_model_upload",
    ),
    "figures of deployments": (
        "models_deployments_metrics",
        "models_deployments_startups",
        "models_environments_metrics",
        "models_environments_startups",
    ),
    "calls of chains": ("run_remote", "async_run_remote"),
}
"""Prefixes of methods by family, without the method's verb."""
OURS = ("users_me",)
"""The exceptions: what a prefix above has, and Tollgate is to have."""
VERBS = ("get", "post", "patch", "delete", "create", "update", "list", "push", "cleanup")


def family_of(method: str) -> str | None:
    """Return the family of a method that is not ours; None for one that must be exercised."""
    verb, _, rest = method.partition("_")
    subject = rest if verb in VERBS else method
    if subject in OURS:
        return None
    for family, prefixes in FAMILIES.items():
        if subject.startswith(prefixes):
            return family
    return None
