"""The list of commands over the management API, in the order of `tollgate --help`."""

import click

from commands.forward.command import forward
from commands.models.command import models
from commands.policy_file.command import apply, export, plan
from commands.reconcile.command import reconcile
from commands.resources.audit import audit
from commands.resources.endpoints import endpoints
from commands.resources.events import events
from commands.resources.groups import groups
from commands.resources.keys import keys
from commands.resources.prices import prices
from commands.resources.requests import requests
from commands.resources.secrets import secrets
from commands.resources.usage import usage
from commands.resources.webhooks import webhooks
from commands.top.command import top
from commands.training.command import training

events.add_command(forward)
events.add_command(reconcile)
OVER_API: tuple[click.Command, ...] = (
    apply,
    audit,
    endpoints,
    events,
    export,
    groups,
    keys,
    models,
    plan,
    prices,
    requests,
    secrets,
    top,
    training,
    usage,
    webhooks,
)
